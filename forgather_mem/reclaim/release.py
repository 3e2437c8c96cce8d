"""Frees memory outside a training: in a script, a notebook, a service, a search."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forgather_mem.actions.clear import clear_cache
from forgather_mem.actions.collect import collect
from forgather_mem.actions.trim import trim_host
from forgather_mem.errors import stream_for_people
from forgather_mem.heap.failed_frames import drop_frames
from forgather_mem.heap.object_size import big_bytes
from forgather_mem.heap.owner_paths import frame_name
from forgather_mem.heap.owners import find_owners
from forgather_mem.heap.retained import WeakWatch, describe
from forgather_mem.heap.variables import empty_assigned
from forgather_mem.sinks.console import print_line
from forgather_mem.system.call_wrapping import P, R, around_calls
from forgather_mem.system.usage import Usage, usage_now
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.triggers import check_period
from forgather_mem.units import MIB, format_bytes, format_duration, parse_bytes

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
_FENCE = FailureGuard()


MIN_KEPT_BYTES = MIB  # less than this left behind by a job is not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """The result of `give_back`: memory before and after, the objects that the collector found, seconds."""

    before: Usage
    after: Usage
    num_objects: int
    took_s: float

    def __str__(self) -> str:
        return f"{write_steps(self.before, self.after)}, {self.num_objects:,} objects collected"


def give_back() -> GivenBack:
    """Collect garbage, empty the device's cache, trim the host: in this order, each finds what the one before freed."""
    before = usage_now()
    began_s = time.perf_counter()
    num_objects = int(collect()["collect/objects"])
    clear_cache()
    trim_host()
    return GivenBack(took_s=time.perf_counter() - began_s, num_objects=num_objects, before=before, after=usage_now())


def write_steps(*steps: Usage) -> str:
    """Consecutive readings, for people.

    >>> write_steps(Usage(host_bytes=3 << 30), Usage(host_bytes=1 << 30))
    'host 3.0 GiB -> 1.0 GiB'
    """
    text = "host " + " -> ".join(format_bytes(step.host_bytes) for step in steps)
    reserved = [format_bytes(step.reserved_bytes) for step in steps if step.reserved_bytes is not None]
    return f"{text}, GPU reserved {' -> '.join(reserved)}" if reserved else text


def release_memory(*objects: object) -> list[None]:
    """Drops these objects, frees their memory, and prints who still holds what remains.

    Use it as `model, optimizer = release_memory(model, optimizer)`: the variables are cleared before memory is freed,
    not after the call. Garbage is collected, the device's cache emptied, the host trimmed. An object with other
    references stays, and its holders are printed to stderr, or in a notebook to stdout. As of Python 3.14 the variables
    of a function are an exception: what they hold is freed by the assignment, after the call.

    Args:
        *objects: Models, optimizers, tensors, anything.

    Returns:
        One None per object.

    >>> class Model: pass
    >>> model, data = Model(), [1, 2, 3]
    >>> model, data = release_memory(model, data)
    >>> model, data
    (None, None)
    """
    watched = WeakWatch(objects)
    nothing: list[None] = [None] * len(objects)
    place = frame_name(sys._getframe(1))
    leaving = [f"local {name!r} of {place}" for name in empty_assigned(sys._getframe(1), objects)]
    del objects
    logger.info("release_memory: %s", give_back())
    for held in watched.held(leaving=leaving):
        _say(f"release_memory: {held}")
    return nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """The measurements of a `cleanup`.

    Attributes:
        start, end, after: Memory when the job began, when it ended, and after the cleanup.
        num_objects: Number of objects that the collector found unreachable.
        num_frames: Number of failed calls whose variables were cleared.
        took_s: Duration of the cleanup itself, in seconds.
        kept_bytes: Memory left behind by the job, in tensors held by Python objects.
        kept: Sentences about it: the largest first, with their owners.
    """

    start: Usage
    end: Usage
    after: Usage
    num_objects: int
    num_frames: int
    took_s: float
    kept_bytes: int
    kept: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{write_steps(self.start, self.end, self.after)} (start, end, cleaned up)"]
        done = f"{self.num_objects:,} objects collected"
        done += f", variables of {self.num_frames} failed calls cleared" * (self.num_frames > 0)
        lines.append(f"{done}, in {format_duration(self.took_s)}")
        if self.kept:
            lines.append(f"left behind: {format_bytes(self.kept_bytes)} in tensors")
            lines += [f"  {sentence}" for sentence in self.kept]
        return "\n".join(lines)


class cleanup:  # lower case: it is used like a function, `with cleanup():`
    """Around a job: frees its memory at the end, however it ends, and reports what it left behind.

    The local variables of failed calls are cleared, both when an error leaves the job and when an error was caught
    inside and kept: it would keep every frame of its traceback alive, and with them models and batches. The errors
    themselves, their tracebacks and their printed form are unchanged. Then garbage is collected, the device's cache
    emptied, the host trimmed. Tensors that the job left behind are printed with their owners.

    Args:
        name: Name of the job, for the report.
        report: Whether to print it, to stderr or in a notebook to stdout.

    Attributes:
        report: The `CleanupReport` after the job has ended, None before.

    >>> with cleanup("trial 1", report=False) as job:
    ...     data = [0] * 1_000
    >>> job.report.num_frames
    0
    """

    def __init__(self, name: str = "", *, report: bool = True) -> None:
        self.name = name
        self.report: CleanupReport | None = None
        self._prints = report

    def __enter__(self) -> cleanup:
        self._handled = sys.exception()
        self._begun = _FENCE.call("cleanup", self._begin) is self
        return self

    def _begin(self) -> cleanup:
        errors, tensors = _errors_and_tensors()
        self._errors = {id(error) for error in errors}
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._start = usage_now()
        return self

    def __exit__(self, *error: object) -> None:
        if self._begun:
            _FENCE.call("cleanup", self._end)

    def _end(self) -> None:
        end = usage_now()
        # the error that leaves the job is among these; no reference to them stays in a variable here
        new = (kept for kept in _errors_and_tensors()[0] if id(kept) not in self._errors)
        num_frames = drop_frames(*new, handled=self._handled)
        del new
        given = give_back()
        kept_bytes, kept_by = self._left_behind()
        self.report = CleanupReport(
            start=self._start, end=end, after=given.after, num_objects=given.num_objects, num_frames=num_frames,
            took_s=given.took_s, kept_bytes=kept_bytes, kept=kept_by,
        )  # fmt: skip
        if self._prints:
            _say(f"cleanup{f' {self.name}' if self.name else ''}: {self.report}")

    def _left_behind(self) -> tuple[int, tuple[str, ...]]:
        before = {id(tensor) for ref in self._tensors if (tensor := ref()) is not None}
        self._tensors.clear()
        tensors = _errors_and_tensors()[1]
        new = sorted((tensor for tensor in tensors if id(tensor) not in before), key=big_bytes, reverse=True)
        num_bytes = sum(big_bytes(tensor) for tensor in new)
        if num_bytes < MIN_KEPT_BYTES:
            return num_bytes, ()
        owners = find_owners(new[:3], max_owners=3, ignore=[new, tensors])
        told = [f"{describe(one)}, {format_bytes(big_bytes(one))}, held by " for one in new[:3]]
        return num_bytes, tuple(told[owner.target] + owner.path for owner in owners)


def cleanup_after(
    *, every: int | None = None, above: str | int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Frees memory after calls of a request handler or a `generate()`: every N calls, or when there is too much.

    Works for functions, methods, coroutines, and generators (after the last item). One call at a time cleans up; others
    that end meanwhile don't wait. The result is logged at INFO.

    Args:
        every: Clean up after every Nth call.
        above: Clean up when the process, or the device's allocator, has more than this, e.g. "2GiB". If that does not
            bring it below, the next attempt is made only after it has grown by a tenth.

    >>> @cleanup_after(every=100, above="64GiB")
    ... def generate(prompt):
    ...     return prompt.upper()
    >>> generate("hello")
    'HELLO'

    Raises:
        ValueError: for neither argument, a period below 1, an invalid size, or anything that is not a function.
    """
    if every is None and above is None:
        raise ValueError('cleanup_after(): give every=100, above="2GiB", or both')
    check_period("cleanup_after", "every", "call", every)
    limit_bytes = None if above is None else parse_bytes(above)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        after = _After(getattr(function, "__qualname__", repr(function)), every, limit_bytes)
        return around_calls(function, lambda: after)

    return decorate


class _After:
    """Entered around each call; decides at its end whether to clean up."""

    def __init__(self, name: str, every: int | None, limit_bytes: int | None) -> None:
        self.name = name
        self.every = every
        self.limit_bytes = limit_bytes
        self._calls = itertools.count(1)
        self._again_bytes = 0
        self._cleaning = threading.Lock()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        call, limit = next(self._calls), self.limit_bytes
        too_much = limit is not None and _largest(usage_now()) > max(limit, self._again_bytes)
        is_due = too_much or (self.every is not None and call % self.every == 0)
        if not is_due or not self._cleaning.acquire(blocking=False):
            return
        try:
            given = give_back()
        finally:
            self._cleaning.release()
        left = _largest(given.after)
        self._again_bytes = int(left * 1.1) if limit is not None and left > limit else 0
        logger.info("cleanup_after: %s, call %d: %s, in %s", self.name, call, given, format_duration(given.took_s))


def _largest(now: Usage) -> int:
    return max(now.host_bytes, now.reserved_bytes or 0)


def _errors_and_tensors() -> tuple[list[BaseException], list[torch.Tensor]]:
    """Live exceptions that hold frames, and tensors held by Python objects."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", ())
    errors, tensors = [], []
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance(): a proxy's __class__ runs its own code
        if issubclass(kind, tensor_type):
            tensors.append(thing)
        elif issubclass(kind, BaseException) and thing.__traceback__ is not None:
            errors.append(thing)
    return errors, tensors


def _say(text: str) -> None:
    print_line("forgather-mem: " + "\n    ".join(text.splitlines()), stream_for_people())
