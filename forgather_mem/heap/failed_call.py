"""What the functions on a traceback were doing: the user's line, what it works on, a callback's event, a copy."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType, FunctionType, TracebackType

from forgather_mem.probes.tensors import StorageKey, storages_in
from forgather_mem.source import bytecode
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_our_class, is_user_file, line_name, source_line

MODULE_FILE = "torch/nn/modules/"
PASS_FUNCTIONS = ("_call_impl", "_wrapped_call_impl")
# Where trainers call a callback: end of the file's path, function, and its variables for the callback and the event.
_CALLS = (
    ("transformers/trainer_callback.py", "call_event", "callback", "event"),
    ("/trainer/call.py", "_call_callback_hooks", "callback", "hook_name"),  # lightning
)
_SAMPLE = ("__getitem__", "__getitems__")
_LINE_IN_TEXT = re.compile(r'^ *File "([^"\n]+)", line (\d+), in (\S+)', re.M)
_TRAINS = frozenset({"backward", "manual_backward", "train", "fit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """What the innermost line of the user's code was doing. Plain text and numbers.

    Attributes:
        rows: The first size of the largest tensor that the line names.
        evaluates: Whether a module in evaluation mode was running, and nobody who has called it may go back after it.
        feeds_training: Whether a loop goes over what was being made, and goes back for it.
        of_graph: Whether the line names a tensor that a backward pass goes through.
        copied: Which of "model" and "optimizer" `copy.deepcopy` was to copy.
    """

    rows: int | None = None
    evaluates: bool = False
    feeds_training: bool = False
    of_graph: bool = False
    copied: tuple[str, ...] = ()


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


def failed_operation(
    failed: Sequence[TracebackType], model: object = None, optimizer: object = None
) -> FailedOperation | None:
    """What the innermost line of the user's code was doing; None without one.

    Args:
        failed: The traceback's entries, outermost first.
        model, optimizer: Those being trained.
    """
    users = [entry for entry in failed if is_users(entry)]
    if not users:
        return None
    last = users[-1]
    names = bytecode.names_on_line(last.tb_frame.f_code, last.tb_lasti)
    named = [value for name, value in frame_variables(last.tb_frame).items() if name in names]
    shapes = [shape for value in named if isinstance(shape := getattr(value, "shape", None), tuple) and shape]
    callers = list(takewhile(lambda entry: MODULE_FILE not in file_of(entry.tb_frame), failed))
    is_eval = getattr(next(modules_running(failed), None), "training", True) is False
    may_go_back = any(_goes_back(entry, failed) if is_users(entry) else _is_loop(entry) for entry in callers)
    return FailedOperation(
        rows=max(shapes, key=math.prod)[0] if shapes else None,
        evaluates=is_eval and not may_go_back,
        feeds_training=any(_feeds(entry, failed) for entry in users),
        of_graph=any(getattr(value, "grad_fn", None) is not None for value in named),
        copied=_copied_state(failed, model, optimizer)[1],
    )


def failed_callback(
    failed: Sequence[TracebackType], model: object = None, optimizer: object = None
) -> tuple[CallbackFailure, int] | None:
    """What is known of the callback that was being called, and the index of its first entry; None without one.

    Of nested calls the innermost counts; our own callbacks are none.
    """
    for index in range(len(failed) - 2, -1, -1):
        called = _called(failed[index].tb_frame)
        if called is not None:
            inner = failed[index + 1 :]
            users = [entry for entry in inner if is_users(entry)]
            at = users[-1] if users else inner[0]
            place = at.tb_frame.f_code.co_filename, at.tb_frame.f_lineno
            copied_bytes, copied = _copied_state(inner, model, optimizer)
            failure = CallbackFailure(
                callback=called,
                line=line_name(*place),
                source=source_line(*place),
                copied_bytes=copied_bytes,
                copied=copied,
                is_users=bool(users),
            )
            return failure, index + 1
    return None


def user_line(failed: Sequence[TracebackType], error: BaseException) -> tuple[str | None, bool]:
    """The innermost line of the user's own code ("train.py:41"), and whether it is in the making of one sample.

    A data worker's traceback arrives as the error's text alone.
    """
    lines = [(entry.tb_frame.f_code.co_filename, entry.tb_lineno, entry.tb_frame.f_code.co_name) for entry in failed]
    lines += [(file, int(number), name) for file, number, name in _LINE_IN_TEXT.findall(_text(error))]
    own = [line_name(file, number) for file, number, _ in lines if is_user_file(file)]
    return own[-1] if own else None, any(name in _SAMPLE for _, _, name in lines)


def has_gone_back(entry: TracebackType) -> bool:
    """Whether the function has, before this line, called a backward pass."""
    names = bytecode.names_before(entry.tb_frame.f_code, entry.tb_lasti)
    return not {"backward", "manual_backward"}.isdisjoint(names)


def may_train(entry: TracebackType) -> bool:
    """Whether this line of the function is inside a loop, or after one that trains."""
    code, position = entry.tb_frame.f_code, entry.tb_lasti
    return bytecode.is_in_loop(code, position) or not _TRAINS.isdisjoint(bytecode.names_before(code, position))


def is_closure(frame: FrameType) -> bool:
    """Whether it is a function of the user's that takes nothing, as what an optimizer's step calls for the loss."""
    code = frame.f_code
    takes = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    return takes == 0 and code.co_name != "<module>" and is_user_file(code.co_filename)


def modules_running(failed: Iterable[TracebackType]) -> Iterator[object]:
    """The modules whose forward pass was running, outermost first."""
    for entry in failed:
        if MODULE_FILE in file_of(entry.tb_frame) and entry.tb_frame.f_code.co_name in PASS_FUNCTIONS:
            yield frame_variables(entry.tb_frame).get("self")


def file_of(frame: FrameType) -> str:
    """The path of the frame's file, with slashes."""
    return frame.f_code.co_filename.replace(os.sep, "/")


def _goes_back(entry: TracebackType, failed: Sequence[TracebackType]) -> bool:
    """Whether the function may still call a backward pass, itself or through a function or method that it names."""
    frame, running = entry.tb_frame, {id(one.tb_frame.f_code) for one in failed}
    names = bytecode.names_ahead(frame.f_code, entry.tb_lasti)
    own = {**frame.f_globals, **frame_variables(frame)}
    called = [own.get(name, getattr(type(own.get("self")), name, None)) for name in names]
    codes = [one.__code__ for one in called if isinstance(one, FunctionType) and id(one.__code__) not in running]
    return any(name.endswith(("backward", "autograd")) for name in names.union(*(code.co_names for code in codes)))


def _feeds(entry: TracebackType, failed: Sequence[TracebackType]) -> bool:
    code, position = entry.tb_frame.f_code, entry.tb_lasti
    return bytecode.makes_iterator(code, position) and _goes_back(entry, failed)


def _is_loop(entry: TracebackType) -> bool:
    """Whether a library's function may go back after what it has called; decorators don't."""
    return not file_of(entry.tb_frame).endswith(("torch/utils/_contextlib.py", "/contextlib.py", "/functools.py"))


def is_users(entry: TracebackType) -> bool:
    """Whether it is in a file of the user's."""
    return is_user_file(entry.tb_frame.f_code.co_filename)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except MemoryError:  # it is only made now
        return ""


def _called(frame: FrameType) -> str | None:
    for end, function, callback_name, event_name in _CALLS:
        if frame.f_code.co_name == function and file_of(frame).endswith(end):
            variables = frame_variables(frame)
            callback = variables.get(callback_name)
            return None if is_our_class(type(callback)) else f"{type(callback).__name__}.{variables.get(event_name)}"
    return None


def _copied_state(
    failed: Sequence[TracebackType], model: object, optimizer: object
) -> tuple[int | None, tuple[str, ...]]:
    """The size of what the outermost `copy.deepcopy` was given, and which of "model" and "optimizer" it is of."""
    for entry in failed:
        if entry.tb_frame.f_code.co_name == "deepcopy" and file_of(entry.tb_frame).endswith("/copy.py"):
            sizes = storages_in(frame_variables(entry.tb_frame).get("x"))
            parts = {"model": storages_in(model), "optimizer": storages_in(getattr(optimizer, "state", None))}
            copied = tuple(part for part, whole in parts.items() if _is_mostly_in(whole, sizes))
            return sum(sizes.values()) or None, copied
    return None, ()


def _is_mostly_in(whole: Mapping[StorageKey, int], sizes: Mapping[StorageKey, int]) -> bool:
    total = sum(whole.values())
    return total > 0 and 2 * sum(size for key, size in whole.items() if key in sizes) >= total
