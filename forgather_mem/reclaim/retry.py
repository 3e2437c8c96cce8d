"""Calls a function that ran out of memory again, with a smaller batch, after freeing its memory."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Concatenate, overload

from forgather_mem.actions.clear import clear_cache
from forgather_mem.actions.collect import collect
from forgather_mem.actions.trim import trim_host
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.errors import check_whole
from forgather_mem.heap.failed_frames import drop_frames
from forgather_mem.system.call_wrapping import P, R
from forgather_mem.system.headroom import device_rooms, host_rooms
from forgather_mem.system.memory_limit import Room
from forgather_mem.telemetry.guard import FailureGuard

logger = logging.getLogger(__name__)


# The next batch is the part that would have fitted, minus a margin, and at most this fraction of the last: the
# allocation that failed is seldom the last one of a call. Chosen with benchmarks/retry.py: in 6,000 synthetic programs
# 5.1 tries and 94 % of the largest batch that fits; halving has 4.4 and 81 %, 0.9 has 16.0 and 98 %.
_MARGIN = 0.97
_AT_MOST = 0.75
_BLIND = 0.5
_RETURN_AT_ONCE = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)
_NAME = "retry_on_oom"
_FENCE = FailureGuard()


@overload
def retry_on_oom(function: Callable[Concatenate[int, P], R], /) -> Callable[P, R]: ...


@overload
def retry_on_oom(
    *, starting_batch_size: int = 64, floor: int = 1
) -> Callable[[Callable[Concatenate[int, P], R]], Callable[P, R]]: ...


def retry_on_oom(
    function: Callable[..., object] | None = None, /, *, starting_batch_size: int = 64, floor: int = 1
) -> Callable[..., object]:
    """Calls a function with a batch size, and again with a smaller one as long as it runs out of memory.

    The function takes the batch size as its first argument, which callers omit, as with accelerate's
    `find_executable_batch_size`. Between two tries the frames of the failed one are cleared, garbage is collected, the
    device cache emptied and the host trimmed, so that the next try can use that memory. The batch shrinks to what would
    have fitted, according to the numbers in the error and the limits of this process, or to half without such numbers.
    Each try is logged. Every call begins at `starting_batch_size`.

    It only handles exceptions: a process killed by the kernel gets no second try.

    Args:
        function: The function to call; without it, this is a decorator with arguments.
        starting_batch_size: The batch size of the first try.
        floor: The smallest batch size to try. If it does not fit either, its error is raised unchanged.

    >>> @retry_on_oom(starting_batch_size=64)
    ... def train(batch_size, steps):
    ...     if batch_size > 20:
    ...         raise MemoryError
    ...     return batch_size, steps
    >>> train(5)
    (16, 5)

    Raises:
        ValueError: for sizes that are not integers, or a floor below 1 or above the first size.
        TypeError: for a generator or coroutine function, which returns before doing anything, and for a method, whose
            first argument is `self`; at the call, for arguments that don't fit after a batch size.
    """
    check_whole(_NAME, starting_batch_size=starting_batch_size, floor=floor)
    if floor > starting_batch_size:
        raise ValueError(f"retry_on_oom(starting_batch_size={starting_batch_size}, floor={floor}): the floor is above")
    if function is None:
        return functools.partial(retry_on_oom, starting_batch_size=starting_batch_size, floor=floor)
    if not callable(function):
        raise TypeError(f"retry_on_oom: {function!r} is no function")
    if getattr(function, "__code__", _rooms.__code__).co_varnames[:1] in (("self",), ("cls",)):
        raise TypeError(
            f"retry_on_oom: {function.__qualname__} is a method, and the batch size is passed as the first argument; "
            "decorate a function inside the method"
        )
    if any(is_one(function) for is_one in _RETURN_AT_ONCE):
        raise TypeError(f"retry_on_oom: {function.__qualname__} returns before it runs, and fails after that")
    name = getattr(function, "__qualname__", repr(function))

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            inspect.signature(function).bind(0, *args, **kwargs)
        except TypeError as error:
            because = "retry_on_oom passes the batch size as the first argument itself"
            raise TypeError(f"{name}: {error}; {because}") from None
        attempt = _Attempts(name, starting_batch_size, floor)
        while True:
            with attempt:
                return function(attempt.batch_size, *args, **kwargs)
            attempt.give_back()

    return call


class _Attempts:
    """The tries of one call. As a context manager it swallows an out-of-memory error and lets all others pass."""

    def __init__(self, name: str, batch_size: int, floor: int) -> None:
        self.name = name
        self.batch_size = batch_size
        self.floor = floor
        self.tried: list[int] = []
        self._handled = sys.exception()
        self._before: dict[str, int] = {}
        self._says = ""

    def __enter__(self) -> None:
        self._before = {room.limit: room.used_bytes for room in _FENCE.call(_NAME, _rooms) or ()}

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        found = _FENCE.call(_NAME, recognise, error)
        if found is None:
            return False
        self.tried.append(self.batch_size)
        if self.batch_size <= self.floor:
            sizes = ", ".join(map(str, self.tried))
            error.add_note(f"retry_on_oom: {self.name} ran out of memory with every batch size tried: {sizes}")
            return False
        # Before the frames are cleared: memory already taken by the failed try is part of what it needed.
        rooms = [room for room in _FENCE.call(_NAME, _rooms) or () if room.where == found.where]
        named = [room for room in rooms if room.where == "device" and room.limit == f"GPU {found.device}"]
        share = _FENCE.call(_NAME, self._share_that_fits, found, next(iter(named or rooms), None)) or _BLIND
        self.batch_size = max(self.floor, int(self.batch_size * share))
        self._says = str(found)
        _FENCE.call(_NAME, functools.partial(drop_frames, error, handled=self._handled))
        return True

    def give_back(self) -> None:
        """Frees what the failed try held; by now its error is gone."""
        for part in (collect, clear_cache, trim_host):
            _FENCE.call(f"{_NAME}, {part.__name__}", part)
        says = "%s: batch size %d does not fit, %s; trying %d"
        logger.warning(says, self.name, self.tried[-1], self._says, self.batch_size)

    def _share_that_fits(self, found: OutOfMemory, room: Room | None) -> float:
        if room is None or not found.requested_bytes:
            return _BLIND
        free = room.free_bytes
        if found.free_bytes is not None:
            free = found.free_bytes + (found.reserved_unused_bytes or 0)
        taken = max(0, room.used_bytes - self._before.get(room.limit, room.used_bytes))
        return min(_MARGIN * (taken + free) / (taken + found.requested_bytes), _AT_MOST)


def _rooms() -> list[Room]:
    """The limits of host and device, the tightest first for each."""
    return host_rooms() + device_rooms()
