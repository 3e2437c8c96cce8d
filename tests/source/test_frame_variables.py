"""The variables of a running function are read without leaving anything behind."""

import gc
import sys
import threading
import weakref

from torch import nn

from forgather_mem.probes.live_objects import live_objects
from forgather_mem.source.frame_variables import frame_variables, is_function


class Thing:
    pass


def test_only_a_function_has_variables_of_its_own() -> None:
    class Body:
        frame = sys._getframe()

    assert is_function(sys._getframe())
    assert not is_function(Body.frame)


def test_reading_keeps_nothing_alive() -> None:
    thing = Thing()
    watched = weakref.ref(thing)
    found = frame_variables(sys._getframe())
    assert found["thing"] is thing
    del thing, found
    assert watched() is None, "no snapshot of the variables is left in this frame"


def test_a_dictionary_that_somebody_else_has_is_not_emptied() -> None:
    thing = Thing()
    frame = sys._getframe()
    theirs = frame.f_locals  # a debugger's
    frame_variables(frame)
    assert theirs["thing"] is thing


def test_what_the_user_has_from_locals_stays_as_it_was() -> None:
    def train(rate: float = 0.1) -> dict[str, object]:
        settings = locals()
        model = nn.Linear(1, 1)
        assert live_objects(nn.Linear)
        frame_variables(sys._getframe())
        del model
        return settings

    assert train() == {"rate": 0.1}


def test_variables_of_a_generator_that_waits_are_read() -> None:
    def numbers() -> object:
        thing = Thing()
        yield weakref.ref(thing)

    waits = numbers()
    watched = next(waits)
    found = frame_variables(waits.gi_frame)
    assert isinstance(found["thing"], Thing)
    waits.close()
    del found
    gc.collect()
    assert watched() is None


def test_a_function_of_another_thread_goes_on_with_its_own_variables() -> None:
    seen, go_on = [], threading.Event()

    def work() -> None:
        number = 1
        seen.append(sys._getframe())
        go_on.wait(10)
        number += 1
        seen.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    while not seen:
        pass
    assert frame_variables(seen[0])["number"] == 1
    go_on.set()
    thread.join()
    assert seen[1] == 2
