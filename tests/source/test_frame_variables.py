"""Which functions run, in all threads; their variables are read without leaving anything behind."""

import gc
import sys
import threading
import weakref

from torch import nn

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.source.frame_variables import frame_variables, is_function, is_our_frame, running_frames


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


def names() -> list[str]:
    return [frame.f_code.co_name for frame in running_frames()]


def test_the_functions_of_all_threads_are_found() -> None:
    def waits() -> None:
        ready.set()
        done.wait(30)

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits)
    thread.start()
    ready.wait(30)
    try:
        found = names()
    finally:
        done.set()
        thread.join()
    assert {"waits", "names", "test_the_functions_of_all_threads_are_found"} <= set(found)
    assert "waits" not in names()


def test_code_of_a_module_is_left_out_as_it_has_no_variables_of_its_own() -> None:
    def in_a_class() -> list[str]:
        class Body:
            found = names()

        return Body.found

    space = {"names": names, "__name__": "a script"}
    exec("found = names()", space)
    assert "<module>" not in space["found"]
    assert "Body" in in_a_class()


def test_a_function_of_this_library_is_not_the_users() -> None:
    seen: list[tuple[bool, bool]] = []

    class Looks:
        @property
        def events(self) -> tuple[str, ...]:
            caller = sys._getframe(1)
            while not is_our_frame(caller) and caller.f_back is not None:
                caller = caller.f_back
            seen.append((is_our_frame(caller), any(frame is caller for frame in running_frames())))
            return ()

        every_steps, every_epochs, limit = 1, 0, None

    from forgather_mem.telemetry.rule import Rule

    MemoryCallback([Rule(Looks(), [print])], [])  # type: ignore[list-item]
    assert seen[0] == (True, False)
    assert not is_our_frame(sys._getframe())
