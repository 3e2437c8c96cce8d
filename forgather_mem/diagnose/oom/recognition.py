"""Recognises out-of-memory errors: which memory ran out, and the sizes in the message.

What closes a run that an error has ended is here, too, since it tells these from others.
"""

from __future__ import annotations

import errno
import glob
import linecache
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from forgather_mem.diagnose.oom import messages
from forgather_mem.errors import first_line, missing
from forgather_mem.heap.failed_frames import chain, entries
from forgather_mem.system.allocator import driver_memory, used_allocators
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.redaction import redacted
from forgather_mem.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run
    from forgather_mem.system.memory_limit import Room
    from forgather_mem.telemetry.records import RunInfo
    from forgather_mem.telemetry.report import OomReport

MAX_MESSAGE_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How sizes are judged.

    Attributes:
        full_frac: Of a device: it is full with less left. A guess: fragments are left of a full one, too.
        rounded_frac: Sizes in a message have three or four digits.
    """

    full_frac: float = 0.02
    rounded_frac: float = 0.99


_SIZES = _Sizes()


_Source: TypeAlias = tuple[str, messages.Where | None]
_DEVICES = r"/dev/(?:nvidia\d|kfd|dri/render|dxg|accel|vfio/)"
_AS_SAID = "requested_bytes", "total_bytes", "allocated_bytes", "private_pools_bytes"
_PINS = r"\bpin_memory\(|\bpin_memory ?= ?True|\bcudaHost(?:Alloc|Register)\b"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What an out-of-memory error says; plain data without the error itself. Missing values are None.

    Attributes:
        kind: The source of the error: "CUDA allocator", "CPU allocator", "MemoryError", "killed worker", ...
        where: Which memory ran out.
        error_type: The name of the error's class, e.g. "torch.OutOfMemoryError".
        message: Its first line, at most 300 characters; of an error without words its class.
        device: Number of the accelerator.
        requested_bytes: The allocation that failed; numpy and the allocators of accelerators print three digits.
        free_bytes: What was free for this process at that time.
        total_bytes: Total memory of the device.
        process_bytes: Memory of this process on the device, including the driver's share.
        allocated_bytes: Of that, in tensors; with `private_pools_bytes`.
        reserved_unused_bytes: Of that, reserved by torch but not used by any tensor.
        private_pools_bytes: Of the allocated bytes, kept by private pools, as of CUDA graphs: no tensor outside the
            graphs can use them.
    """

    kind: str
    where: messages.Where
    error_type: str
    message: str
    device: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    process_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unused_bytes: int | None = None
    private_pools_bytes: int | None = None

    def __str__(self) -> str:
        device = "the device" if self.device is None else f"GPU {self.device}"
        what = "no host memory was given" if self.where == "host" else f"{device} is out of memory"
        parts = [f"{what} ({self.kind})"]
        if self.requested_bytes is not None:
            parts.append(f"wanted {format_bytes(self.requested_bytes)}")
        if self.free_bytes is not None:
            total = "" if self.total_bytes is None else f" of {format_bytes(self.total_bytes)}"
            parts.append(f"free {format_bytes(self.free_bytes)}{total}")
        return ", ".join(parts)


def unexamined(found: OutOfMemory, limit: Room, phase: str, step: int, rank: int) -> OomReport:
    """What is told where memory is so short that looking into it could end the process; loads next to nothing.

    Args:
        found: What the error says.
        limit: That at which the kernel kills.
        phase, step, rank: Where it was raised, as far as that is known without looking.
    """
    from forgather_mem.telemetry.report import OomReport

    left = f"{format_bytes(limit.free_bytes)} were left below a limit at which the kernel kills ({limit.limit})"
    known = {name: getattr(found, name) for name in ("where", "requested_bytes", "kind", "error_type", "message")}
    of_limit = {"free_bytes": limit.free_bytes, "limit_bytes": limit.limit_bytes, "limit": limit.limit}
    known |= of_limit if found.where == "host" else {"free_bytes": found.free_bytes}
    return OomReport(step=step, phase=phase, rank=rank, why_now=f"not looked into: {left}.", **known)


def recognise(error: BaseException) -> OutOfMemory | None:
    """What this error says about memory that ran out; None if it is about something else.

    Examined are the error itself, then the members of a group, its cause, and its context. Types are checked first,
    then the wording.

    >>> recognise(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.76 GiB total capacity; ...")
    ... ).requested_bytes
    2147483648
    >>> recognise(ValueError("batch size 0")) is None
    True
    """
    return next(filter(None, map(_recognise_one, chain(error))), None)


def close_failed(run: RunInfo, error: BaseException) -> None:
    """Close the run as ended by this error: "interrupted", "oom" or "exception". Nothing of the error is kept."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        run.fail(error, "interrupted")
    else:
        run.fail(error, "oom" if FailureGuard().call("oom", recognise, error) is not None else "exception")


def close_fenced(run: Run, error: BaseException | None = None) -> None:
    """Close the run, as ended by this error if there is one; where closing fails, give back what was taken."""
    if error is not None:
        run.fence.call("the end of a run", close_failed, run, error)
    else:
        run.fence.call("the end of a run", run.close)
    if not run.closed:  # closing has failed
        run.fence.call("the end of a run", run.put_back)


def _recognise_one(error: BaseException) -> OutOfMemory | None:
    if isinstance(error, BaseExceptionGroup) or not isinstance(error, Exception):
        return None  # a group's message may quote its members; Ctrl-C is not an error
    by_type = _by_type(error)
    if by_type is None and isinstance(error, messages.NEVER):
        return None
    text = _text(error)
    shape = next((shape for shape in messages.SHAPES if re.search(shape.pattern, text, re.M)), None)
    numbers = {name: _number(name, text) for name in messages.NUMBERS}
    if by_type is None and (shape is None or _has_another_cause(shape, numbers["requested_bytes"])):
        return None
    kind, where = _kind(by_type, shape)
    where = where or _where_of_both()
    if kind == "driver" and _was_pinning(error):
        kind, where = messages.PINNED, "host"
    device = re.search(messages.DEVICE, text)
    return OutOfMemory(
        kind=kind,
        where=where,
        error_type=_name(type(error)),
        message=(first_line(text) or type(error).__name__)[:300],
        device=next(int(number) for number in device.groups() if number) if device and where == "device" else None,
        free_bytes=_free(numbers),
        process_bytes=_process_bytes(numbers, text),
        reserved_unused_bytes=_unused(numbers),
        **{name: numbers[name] for name in _AS_SAID},
    )


def _by_type(error: Exception) -> _Source | None:
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "ENOMEM", "host"
    return next((messages.TYPES[name] for name in map(_name, type(error).__mro__) if name in messages.TYPES), None)


def _kind(by_type: _Source | None, shape: messages.MessageShape | None) -> _Source:
    """The kind of error: its type says which memory ran out, its wording says more about the source."""
    # Who translates exceptions of C++ raises a MemoryError for a device's, too
    if shape and (by_type is None or (shape.where != "host" and by_type[0] in ("device allocator", "MemoryError"))):
        return shape.kind, shape.where
    assert by_type is not None
    return by_type


def _where_of_both() -> messages.Where:
    """Which memory a library means that works on both: an accelerator's, if this process has one open."""
    opened = map(os.path.realpath, glob.glob("/proc/self/fd/*"))
    return "device" if used_allocators() or any(re.match(_DEVICES, path) for path in opened) else "host"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _text(error: Exception) -> str:
    try:
        return redacted(str(error)[:MAX_MESSAGE_CHARS])
    except MemoryError:  # the message is only built now, and there is no memory for it
        return ""


def _number(name: str, text: str) -> int | None:
    found = next(filter(None, (re.search(pattern, text) for pattern in messages.NUMBERS[name])), None)
    return _bytes(*found.groups("")) if found else None


def _bytes(number: str, unit: str) -> int:
    # torch's "MB" and "GB" (on MPS) are powers of 1024 as well
    unit = "" if unit in ("", "B", "bytes") else re.sub("i?B$", "iB", unit)
    return parse_bytes(f"{number.replace(',', '').rstrip('.')} {unit}")


def _free(numbers: dict[str, int | None]) -> int | None:
    free, total, allocated = numbers["free_bytes"], numbers["total_bytes"], numbers["allocated_bytes"]
    if free is None and total is not None and allocated is not None and numbers["other_bytes"] is not None:
        return max(0, total - allocated - numbers["other_bytes"])  # MPS reports everything except this
    allowed = numbers["allowed_bytes"]
    if free is not None and allowed is not None and allocated is not None:  # a fraction set by the user
        return max(0, min(free, allowed - allocated - (_unused(numbers) or 0)))
    return free


def _unused(numbers: dict[str, int | None]) -> int | None:
    if numbers["other_bytes"] is not None:
        return 0  # MPS gives its cache back before it raises, and what else the driver counts is other allocations
    reserved, allocated = numbers["reserved_bytes"], numbers["allocated_bytes"]
    return numbers["reserved_unused_bytes"] if reserved is None or allocated is None else max(0, reserved - allocated)


def _process_bytes(numbers: dict[str, int | None], text: str) -> int | None:
    """This process's bytes where the message does not say them: those of the only listed process that can hold what
    torch has reserved."""
    if numbers["process_bytes"] is not None or numbers["allocated_bytes"] is None:
        return numbers["process_bytes"]
    reserved = numbers["allocated_bytes"] + (_unused(numbers) or 0)
    sizes = [_bytes(*found) for found in re.findall(messages.PROCESSES, text)]
    able = [size for size in sizes if size >= _SIZES.rounded_frac * reserved]
    return able[0] if len(able) == 1 else None


def _was_pinning(error: Exception) -> bool:
    """Whether the failed statement asks for page-locked memory: `cudaHostAlloc` fails with the words of the device."""
    failed = list(entries(error.__traceback__))
    if not failed:
        return False
    code, line = failed[-1].tb_frame.f_code, failed[-1].tb_lineno
    last = next((end for start, end, *_ in code.co_positions() if start == line and end is not None), line)
    statement = "".join(linecache.getline(code.co_filename, number) for number in range(line, last + 1))
    return code.co_name == "pin_memory" or re.search(_PINS, statement) is not None


def _has_another_cause(shape: messages.MessageShape, wanted_bytes: int | None) -> bool:
    """Whether a message with several possible causes is, as far as is known, not about memory here."""
    if shape.unless_room_in == "/dev/shm":
        with missing(OSError):
            return shutil.disk_usage("/dev/shm").free > (wanted_bytes or 0)
        return False
    is_full = _device_is_full()
    return (shape.only_when_full and not is_full) or (shape.unless_room_in == "device" and is_full is False)


def _device_is_full() -> bool | None:
    """Whether any of this process's devices is; None if it is not known."""
    known = [memory for memory in [driver_memory(allocator) for allocator in used_allocators()] if memory is not None]
    return any(free < _SIZES.full_frac * total for free, total in known) if known else None
