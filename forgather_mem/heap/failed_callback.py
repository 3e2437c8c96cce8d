"""The callback in whose event an error was raised: whose it is, its line, and what it was copying."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from forgather_mem.probes.tensors import StorageKey, storages_in
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_our_class, is_user_file, line_name, source_line

# Where trainers call a callback: end of the file's path, function, and its variables for the callback and the event.
_CALLS = (
    ("transformers/trainer_callback.py", "call_event", "callback", "event"),
    ("/trainer/call.py", "_call_callback_hooks", "callback", "hook_name"),  # lightning
)
_COPIES = (f"{os.sep}copy.py", "deepcopy")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailure:
    """Plain text and numbers.

    Attributes:
        callback: Its class and event: "KeepsCopies.on_save".
        line: The innermost line of the user's own code, or else of the callback's: "train.py:41".
        source: That line's text.
        copied_bytes: Size of the tensors that were to be copied; None if `copy.deepcopy` was not running.
        copied: Which of "model" and "optimizer" they are.
        is_users: Whether the user wrote the callback and can change it.
    """

    callback: str
    line: str
    source: str
    copied_bytes: int | None = None
    copied: tuple[str, ...] = ()
    is_users: bool = True


def failed_callback(
    frames: Sequence[FrameType], model: object = None, optimizer: object = None
) -> tuple[CallbackFailure, int] | None:
    """What is known of the callback that was being called, and the index of its first frame; None without one.

    Of nested calls the innermost counts; our own callbacks are none.

    Args:
        frames: Those of the traceback, outermost first.
        model, optimizer: Those being trained, if known.
    """
    for index in range(len(frames) - 2, -1, -1):
        called = _called(frames[index])
        if called is not None:
            inner = frames[index + 1 :]
            line, source = _line(inner)
            copied_bytes, copied = copied_state(inner, model, optimizer)
            failure = CallbackFailure(
                callback=called,
                line=line,
                source=source,
                copied_bytes=copied_bytes,
                copied=copied,
                is_users=any(is_user_file(frame.f_code.co_filename) for frame in inner),
            )
            return failure, index + 1
    return None


def _called(frame: FrameType) -> str | None:
    file, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
    for end, function, callback_name, event_name in _CALLS:
        if name == function and file.endswith(end):
            callback, event = _variables(frame, callback_name, event_name)
            return None if is_our_class(type(callback)) else f"{type(callback).__name__}.{event}"
    return None


def _line(frames: Sequence[FrameType]) -> tuple[str, str]:
    users = [frame for frame in frames if is_user_file(frame.f_code.co_filename)]
    frame = users[-1] if users else frames[0]
    at = frame.f_code.co_filename, frame.f_lineno
    return line_name(*at), source_line(*at)


def copied_state(frames: Iterable[FrameType], model: object, optimizer: object) -> tuple[int | None, tuple[str, ...]]:
    """The size of what the outermost `copy.deepcopy` was given, and which of "model" and "optimizer" it is of.

    None if `copy.deepcopy` was not running, or if there was no tensor in it.
    """
    end, function = _COPIES
    for frame in frames:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(end):
            (value,) = _variables(frame, "x")
            sizes = storages_in(value)
            if not sizes:
                return None, ()
            parts = {"model": storages_in(model), "optimizer": storages_in(getattr(optimizer, "state", None))}
            copied = tuple(part for part, whole in parts.items() if _is_mostly_in(whole, sizes))
            return sum(sizes.values()), copied
    return None, ()


def _is_mostly_in(whole: Mapping[StorageKey, int], sizes: Mapping[StorageKey, int]) -> bool:
    total = sum(whole.values())
    return total > 0 and 2 * sum(size for key, size in whole.items() if key in sizes) >= total


def _variables(frame: FrameType, *names: str) -> list[object]:
    variables = frame_variables(frame)
    return [variables.get(name) for name in names]
