"""Which functions run, in all threads, and which of them are the library's own."""

import sys
from collections.abc import Iterator
from types import FrameType

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.heap.live_frames import is_frame_running, is_our_frame, running_frames, running_namespaces


def names() -> list[str]:
    return [frame.f_code.co_name for frame in running_frames()]


def test_code_of_a_module_is_left_out_as_it_has_no_variables_of_its_own() -> None:
    def in_a_class() -> list[str]:
        class Body:
            found = names()

        return Body.found

    space = {"names": names, "__name__": "a script"}
    exec("found = names()", space)
    assert "<module>" not in space["found"]
    assert "Body" in in_a_class()
    seen: list[bool] = []
    space = {"look": lambda: seen.append(any(one is space for one in running_namespaces()))}
    exec("look()", space)
    assert seen == [True]


def test_a_function_runs_until_it_has_returned() -> None:
    def numbers() -> Iterator[FrameType]:
        yield sys._getframe()

    generator = numbers()
    frame = next(generator)
    assert not is_frame_running(frame), "it waits, and is in nobody's way"
    assert is_frame_running(sys._getframe())
    generator.close()


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
