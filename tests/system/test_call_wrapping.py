"""A context around each call: where it begins and ends for each kind of function, and what becomes of its failures.

What memory such a call takes is in `tests/trackers/test_blocks.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from forgather_mem.system import call_wrapping
from forgather_mem.system.call_wrapping import around_calls

happened: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    happened.clear()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Notes when it begins, and how it ends."""
    happened.append("begin")
    try:
        yield
    except BaseException as error:
        happened.append(type(error).__name__)
        raise
    happened.append("end")


class Zero(float):
    """One that can be watched."""


def function(number: int) -> int:
    happened.append("inside")
    return 6 // number


async def coroutine(number: int) -> int:
    await asyncio.sleep(0)
    return function(number)


def generator(number: int) -> Iterator[int]:
    yield function(number)


CALLS: dict[Callable[..., Any], Callable[[Any], int]] = {
    function: lambda result: result, coroutine: asyncio.run, generator: sum,
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_each_call_is_inside_a_context_of_its_own_and_stays_of_its_kind(kind: Callable[..., Any]) -> None:
    wrapped, result_of = around_calls(kind, noted), CALLS[kind]
    assert (wrapped.__name__, inspect.signature(wrapped)) == (kind.__name__, inspect.signature(kind))
    for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction):
        assert is_kind(wrapped) is is_kind(kind)
    assert result_of(wrapped(2)) == result_of(wrapped(number=2)) == 3
    assert happened == ["begin", "inside", "end"] * 2
    happened.clear()
    with pytest.raises(ZeroDivisionError):
        result_of(wrapped(0))
    assert happened == ["begin", "inside", "ZeroDivisionError"]


def test_a_generator_passes_on_what_is_sent_thrown_and_returned() -> None:
    def asks() -> Generator[str, int, str]:
        answer = yield "how many?"
        try:
            yield "really?"
        except KeyError:
            yield "caught"
        return f"{answer}!"

    running = around_calls(asks, noted)()
    assert (next(running), running.send(7), running.throw(KeyError())) == ("how many?", "really?", "caught")
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert (stop.value.value, happened) == ("7!", ["begin", "end"])


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fails_at", ["__enter__", "__exit__"])
def test_a_context_that_fails_is_no_failure_of_the_call(kind: Callable[..., Any], fails_at: str) -> None:
    class Fails(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            self.fail("__enter__")

        def __exit__(self, *error: object) -> None:
            self.fail("__exit__")

        def fail(self, where: str) -> None:
            happened.append(where)
            if where == fails_at:
                raise RuntimeError("ours")

    assert CALLS[kind](around_calls(kind, Fails)(2)) == 3
    assert happened == ["__enter__", "inside"] + ["__exit__"] * (fails_at == "__exit__")


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_the_traceback_of_a_failing_call_is_as_without_a_context(kind: Callable[..., Any]) -> None:
    zeros = [Zero()]
    gone = weakref.ref(zeros[0])
    with pytest.raises(ZeroDivisionError) as caught:
        CALLS[kind](around_calls(kind, noted)(zeros.pop()))
    assert call_wrapping.__file__ not in [str(entry.path) for entry in caught.traceback]
    assert happened[0] == "begin"
    traceback.clear_frames(caught.tb)
    gc.collect()
    assert gone() is None, "the frame that is not in the traceback keeps its argument"
