"""What the variables of a failed script's own functions hold: tensors and arrays that are no part of the model."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from forgather_mem.heap.object_size import array_bytes
from forgather_mem.probes.tensors import StorageKey, storages_in
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_class, is_user_file, line_name
from forgather_mem.source.syntax import tree_of

_CONTAINERS = (list, tuple, deque, dict, OrderedDict, defaultdict)
_FETCHES = "torch/utils/data/_utils/fetch.py"
# End of the file of a library's loop, the attribute in which it keeps what a method of the user's returns, that method
_LIBRARY_KEEPS = (("/loops/prediction_loop.py", "_predictions", "predict_step()"),)
_TRAINERS_FILE, _RUNS = "/pytorch/trainer/trainer.py", "_run_stage"  # of Lightning
_MOST_PARTS = 20_000  # a data set that is a list of samples is not walked to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVariable:
    """Plain text and numbers.

    Attributes:
        name: "`outputs` of evaluate()", "`KeepsCopies.copies`".
        line: Where a variable was assigned: "train.py:41"; None for an attribute.
        num_bytes: Of the tensors and arrays in it; at least so many, if there are very many.
        collects: Whether it is a list or another container, not one tensor or array.
        most_items: Of a deque, its `maxlen`.
        num_items: Of a list its length; 0 if it is none.
        returned_by: The method of the user's whose results it is, which a library keeps.
    """

    name: str
    line: str | None
    num_bytes: int
    collects: bool
    num_items: int = 0
    most_items: int | None = None
    returned_by: str | None = None


def held_variables(
    frames: Iterable[FrameType], model: object = None, optimizer: object = None, others: Iterable[object] = ()
) -> list[HeldVariable]:
    """What the user's functions hold in their variables, the largest first; each tensor counts for the first holder.

    Args:
        frames: Those of the traceback, outermost first.
        model, optimizer: Those being trained: what is theirs doesn't count.
        others: Objects, as callbacks, whose attributes are looked at, too.
    """
    known = {*_storages(model), *_storages(optimizer)}
    if hasattr(model, "parameters"):
        known.update(_storages([parameter.grad for parameter in model.parameters()]))
    found = []
    from_library = False
    for frame in frames:
        is_users = is_user_file(frame.f_code.co_filename)
        if is_users:
            variables = frame_variables(frame)
            given = _parameters(frame) if from_library else ()
            for name in given:  # the caller holds it, and nobody but the library can hold less
                _new_bytes(variables.get(name), known)
            found += [_held(name, value, frame, known) for name, value in variables.items() if name not in given]
            for value in variables.values():  # a buffer or a cache of the user's own making
                if is_user_class(type(value)) and not hasattr(value, "parameters"):
                    found += [held for held in _attributes(value, known) if held.collects]
            found += _attributes(variables.get("self"), known)
        elif frame.f_code.co_filename.replace(os.sep, "/").endswith(_FETCHES):  # its caller has no dataset
            found += _attributes(getattr(frame_variables(frame).get("self"), "dataset", None), known)
        else:
            found += _kept_by_library(frame, known)
            others = [*others, *_callbacks_of_library(frame)]
        from_library = not is_users
    for other in others:
        found += _attributes(other, known)
    if hasattr(model, "modules"):  # what a metric or a Lightning module collects
        found += [held for module in model.modules() for held in _attributes(module, known) if held.collects]
    return sorted((held for held in found if held.num_bytes), key=lambda held: -held.num_bytes)


def _kept_by_library(frame: FrameType, known: set[StorageKey]) -> Iterator[HeldVariable]:
    file = frame.f_code.co_filename.replace(os.sep, "/")
    for end, attribute, method in _LIBRARY_KEEPS:
        if file.endswith(end):
            kept = getattr(frame_variables(frame).get("self"), attribute, None)
            size = _new_bytes(kept, known)
            yield HeldVariable(name=f"`{attribute}`", line=None, num_bytes=size, collects=True, returned_by=method)


def _callbacks_of_library(frame: FrameType) -> list[object]:
    """The user's callbacks of the trainer whose outermost function this is; else none."""
    file, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
    if name != _RUNS or not file.endswith(_TRAINERS_FILE):
        return []
    callbacks = getattr(frame_variables(frame).get("self"), "callbacks", None)
    return [one for one in callbacks if is_user_class(type(one))] if isinstance(callbacks, list) else []


def _parameters(frame: FrameType) -> tuple[str, ...]:
    """The parameters of a function, without `self`."""
    code = frame.f_code
    starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
    return tuple(name for name in names if name != "self")


def _held(name: str, value: object, frame: FrameType, known: set[StorageKey]) -> HeldVariable:
    function, file, number = frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno
    num_bytes = _new_bytes(value, known)
    made_at = _assigned_at(frame, name) if num_bytes else number
    return HeldVariable(
        name=f"`{name}`" if function == "<module>" else f"`{name}` of {function}()",
        line=line_name(file, made_at) if num_bytes else None,
        num_bytes=num_bytes,
        collects=type(value) in _CONTAINERS,
        num_items=len(value) if isinstance(value, list | deque) else 0,
        most_items=value.maxlen if isinstance(value, deque) else None,
    )


def _attributes(thing: object, known: set[StorageKey]) -> list[HeldVariable]:
    attributes = getattr(thing, "__dict__", None)
    return [
        HeldVariable(
            name=f"`{type(thing).__name__}.{name}`",
            line=None,
            num_bytes=_new_bytes(value, known),
            collects=type(value) in _CONTAINERS,
            num_items=len(value) if isinstance(value, list | deque) else 0,
            most_items=value.maxlen if isinstance(value, deque) else None,
        )
        for name, value in (list(attributes.items()) if isinstance(attributes, dict) else ())
    ]


def _new_bytes(value: object, known: set[StorageKey]) -> int:
    """Bytes of the tensors, modules and arrays in a value that are not in `known` yet; adds them to it."""
    total = 0
    for part in _parts(value):
        new = {key: size for key, size in _storages(part).items() if key not in known}
        known.update(new)
        total += sum(new.values()) or array_bytes(part)
    return total


def _storages(value: object) -> dict[StorageKey, int]:
    """The storages in a value. Imports nothing: there may be no memory for it."""
    return storages_in(value) if "torch" in sys.modules else {}


def _parts(value: object) -> Iterator[object]:
    """What is in nested containers; the value itself if it is none."""
    todo, seen = [value], set[int]()
    while todo and len(seen) < _MOST_PARTS:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict) and type(part) in _CONTAINERS:
            todo += list(part.values())[:_MOST_PARTS]
        elif isinstance(part, list | tuple | deque) and (type(part) in _CONTAINERS or hasattr(part, "_fields")):
            todo += list(part)[:_MOST_PARTS]
        else:
            yield part


def _assigned_at(frame: FrameType, name: str) -> int:
    """The function's last line before the current one that assigns this variable; the current one if none does."""
    first, last = frame.f_code.co_firstlineno, frame.f_lineno
    tree = tree_of(frame.f_code.co_filename)
    lines = (
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    )
    return max((line for line in lines if first <= line < last), default=last)
