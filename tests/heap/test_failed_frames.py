import asyncio
import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest

from forgather_mem.heap.failed_frames import chain, drop_frames


class Big:
    """Something that a failed call had in a local variable."""


def alive(watched: list[weakref.ref[Big]]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in watched)


def fail(watched: list[weakref.ref[Big]], error: Exception | None = None) -> None:
    big = Big()
    watched.append(weakref.ref(big))
    raise error if error is not None else ValueError("failed")


def caught(watched: list[weakref.ref[Big]]) -> ValueError:
    try:
        fail(watched)
    except ValueError as error:
        return error
    raise AssertionError


def test_the_variables_of_failed_calls_go_although_the_error_is_kept() -> None:
    watched: list[weakref.ref[Big]] = []
    kept = caught(watched)
    assert alive(watched) == 1  # this is what keeps memory
    assert drop_frames(kept) == 2  # `fail` and `caught`, which has returned
    assert alive(watched) == 0


def test_what_called_the_handler_and_has_ended_goes_too() -> None:
    def call(big: Big) -> tuple[ValueError, weakref.ref[Big]]:
        return caught([]), weakref.ref(big)

    kept, watched = call(Big())
    assert alive([watched]) == 1  # `caught`'s frame keeps that of `call`
    drop_frames(kept)
    assert alive([watched]) == 0


def test_the_traceback_prints_as_before() -> None:
    kept = caught([])
    before = "".join(traceback.format_exception(kept))
    drop_frames(kept)
    assert "".join(traceback.format_exception(kept)) == before
    assert "raise error if error is not None" in before


def test_causes_contexts_hidden_ones_and_groups_are_emptied_too() -> None:
    watched: list[weakref.ref[Big]] = []

    def wrap(how: str) -> Exception:
        try:
            try:
                fail(watched)
            except ValueError as error:
                if how == "from":
                    raise RuntimeError("wrapped") from error
                if how == "from none":
                    raise RuntimeError("wrapped") from None
                fail(watched, KeyError("while handling"))
        except (RuntimeError, KeyError) as error:
            return error
        raise AssertionError

    kept = ExceptionGroup("tasks", [wrap("from"), wrap("from none"), ExceptionGroup("inner", [wrap("handling")])])
    assert alive(watched) == 4
    drop_frames(kept)
    assert alive(watched) == 0


def test_frames_that_still_run_keep_their_variables() -> None:
    big = Big()
    watched = [weakref.ref(big)]
    try:
        fail(watched)
    except ValueError as error:
        num_emptied = drop_frames(error)
    assert num_emptied == 1  # `fail`, and not this function
    assert alive(watched) == 1
    assert isinstance(big, Big)


def test_a_snapshot_of_the_variables_that_a_logger_took_goes_too() -> None:
    watched: list[weakref.ref[Big]] = []
    kept = caught(watched)
    for part, _ in traceback.walk_tb(kept.__traceback__):
        assert part.f_locals  # Python before 3.13 stores this in the frame
    drop_frames(kept)
    assert alive(watched) == 0


def test_a_generator_that_waits_goes_on_and_one_that_failed_is_emptied() -> None:
    watched: list[weakref.ref[Big]] = []
    errors: list[Exception] = []

    def numbers() -> Iterator[int]:
        big = Big()
        watched.append(weakref.ref(big))
        try:
            raise ValueError("handled inside")
        except ValueError as error:
            errors.append(error)
        yield 1
        yield 2
        raise KeyError("for good")

    running = numbers()
    assert next(running) == 1
    drop_frames(errors[0])
    assert alive(watched) == 1
    assert next(running) == 2  # traceback.clear_frames would have ended it
    with pytest.raises(KeyError) as raised:
        next(running)
    drop_frames(raised.value)
    assert alive(watched) == 0


def test_a_coroutine_that_waits_goes_on() -> None:
    async def work(errors: list[Exception]) -> str:
        try:
            raise ValueError
        except ValueError as error:
            errors.append(error)
        await asyncio.sleep(0.01)
        return "done"

    async def main() -> str:
        errors: list[Exception] = []
        task = asyncio.create_task(work(errors))
        await asyncio.sleep(0)
        drop_frames(errors[0])
        return await asyncio.wait_for(task, 5)

    assert asyncio.run(main()) == "done"


def test_a_chain_gives_each_error_once_and_ends() -> None:
    first, second, third = ValueError("a"), ValueError("b"), ValueError("c")
    first.__context__, second.__context__, first.__cause__ = second, first, third
    assert list(chain(first)) == [first, third]  # a cause hides the context
    assert list(chain(first, suppressed=True)) == [first, third, second]
