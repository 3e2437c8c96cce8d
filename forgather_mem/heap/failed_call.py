"""What the functions on a traceback were doing: the user's line, what it works on, a callback's event, a copy."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType

from forgather_mem.probes.tensors import storages_in
from forgather_mem.source import bytecode
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_our_class, is_user_file, line_name, source_line

MODULE_FILE = "torch/nn/modules/module.py"
PASS_FUNCTIONS = ("_call_impl", "_wrapped_call_impl")
# Where trainers call a callback: end of the file's path, function, and its variables for the callback and the event.
_CALLS = (
    ("transformers/trainer_callback.py", "call_event", "callback", "event"),
    ("/trainer/call.py", "_call_callback_hooks", "callback", "hook_name"),  # lightning
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailure:
    """Plain text and numbers.

    Attributes:
        callback: Its class and event: "KeepsCopies.on_save".
        line: The innermost line of the user's own code, or else of the callback's: "train.py:41".
        source: That line's text.
        copied_bytes: Size of the tensors that `copy.deepcopy` was to copy; None if it was not running.
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
    failed: Sequence[TracebackType], model: object = None, optimizer: object = None
) -> tuple[CallbackFailure, int] | None:
    """What is known of the callback that was being called, and the index of its first entry; None without one.

    Of nested calls the innermost counts; our own callbacks are none.
    """
    for index in range(len(failed) - 2, -1, -1):
        if (called := _called(failed[index].tb_frame)) is not None:
            return _failure_in(called, failed[index + 1 :], model, optimizer), index + 1
    return None


def failed_copy(failed: Sequence[TracebackType], model: object, optimizer: object) -> CallbackFailure | None:
    """The same of the user's function that was copying the model or the optimizer's state; None where none was."""
    made = _failure_in("", failed, model, optimizer)
    users = [entry.tb_frame.f_code.co_name for entry in failed if is_users(entry)]
    name = f"{users[-1]}()" if users and users[-1] != "<module>" else "the script"
    return replace(made, callback=name) if made.is_users and made.copied else None


def _failure_in(called: str, inner: Sequence[TracebackType], model: object, optimizer: object) -> CallbackFailure:
    users = [entry for entry in inner if is_users(entry)]
    at = users[-1] if users else inner[0]
    place = at.tb_frame.f_code.co_filename, at.tb_lineno
    copied_bytes, copied = copied_state(inner, model, optimizer)
    return CallbackFailure(
        callback=called,
        line=line_name(*place),
        source=source_line(*place),
        copied_bytes=copied_bytes,
        copied=copied,
        is_users=bool(users),
    )


def may_repeat(entry: TracebackType) -> bool:
    """Whether this line of the function is inside a loop."""
    return bytecode.is_in_loop(entry.tb_frame.f_code, entry.tb_lasti)


def loss_rows(entry: TracebackType) -> int | None:
    """The first size of the largest tensor that the line names, if a backward pass goes through one of them."""
    frame = entry.tb_frame
    names = bytecode.names_on_line(frame.f_code, entry.tb_lasti)
    values = [value for name, value in frame_variables(frame).items() if name in names]
    shapes = [shape for value in values if isinstance(shape := getattr(value, "shape", None), tuple) and shape]
    is_loss = any(getattr(value, "grad_fn", None) is not None for value in values)
    return max(shapes, key=math.prod)[0] if is_loss and shapes else None


def is_closure(frame: FrameType) -> bool:
    """Whether it is a function of the user's that takes nothing, as what an optimizer's step calls for the loss."""
    code = frame.f_code
    takes = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    return takes == 0 and code.co_name != "<module>" and is_user_file(code.co_filename)


def calls_module(frame: FrameType) -> bool:
    """Whether it calls a module of torch for its forward pass."""
    return frame.f_code.co_name in PASS_FUNCTIONS and file_of(frame).endswith(MODULE_FILE)


def file_of(frame: FrameType) -> str:
    """The path of the frame's file, with slashes."""
    return frame.f_code.co_filename.replace(os.sep, "/")


def is_users(entry: TracebackType) -> bool:
    """Whether it is in a file of the user's."""
    return is_user_file(entry.tb_frame.f_code.co_filename)


def _called(frame: FrameType) -> str | None:
    for end, function, callback_name, event_name in _CALLS:
        if frame.f_code.co_name == function and file_of(frame).endswith(end):
            variables = frame_variables(frame)
            callback = variables.get(callback_name)
            return None if is_our_class(type(callback)) else f"{type(callback).__name__}.{variables.get(event_name)}"
    return None


def copied_state(
    failed: Sequence[TracebackType], model: object, optimizer: object
) -> tuple[int | None, tuple[str, ...]]:
    """The size of what the outermost `copy.deepcopy` was given, and which of "model" and "optimizer" it is of."""
    for entry in failed:
        if entry.tb_frame.f_code.co_name == "deepcopy" and file_of(entry.tb_frame).endswith("/copy.py"):
            sizes = storages_in(frame_variables(entry.tb_frame).get("x"))
            parts = {"model": storages_in(model), "optimizer": storages_in(getattr(optimizer, "state", None))}
            inside = {part: sum(size for key, size in whole.items() if key in sizes) for part, whole in parts.items()}
            copied = tuple(part for part, whole in parts.items() if 0 < sum(whole.values()) <= 2 * inside[part])
            return sum(sizes.values()) or None, copied
    return None, ()
