"""Writes the path from one object to another that it holds, as a programmer would."""

from __future__ import annotations

import itertools
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from forgather_mem.heap.containers import LRU_CACHE
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import file_name

MAX_KEY_CHARS = 40
# torch keeps a module's parts in internal dicts; people write module.part.
_MODULE_PARTS = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
_LOCAL = re.compile(r"local '(.+?)' of (?:.*\.)?(\S+) \(.*?\)(.*)", re.S)
# What objects written in C compute when asked, and `_slots` does not see
_ASKED_FOR = ("__self__", "args", "__cause__", "__context__", "__traceback__")
_TENSOR_PARTS = ("_backward_hooks", "_post_accumulate_grad_hooks", "grad", "_base")
# What is suspended, and which attribute has its frame
FRAMES = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}


def write_path(nodes: Sequence[object], *, begins_with_namespace: bool = False) -> str:
    """The path from the first of these objects to the last; each holds the next.

    Args:
        nodes: The objects.
        begins_with_namespace: The first is a module's namespace dict.

    >>> class Trainer: pass
    >>> trainer = Trainer()
    >>> trainer.kept = [{"logits": 5}]
    >>> write_path([trainer, vars(trainer), trainer.kept, trainer.kept[0], 5])
    ".kept[0]['logits']"
    """
    steps = (
        _step(before, holder, held, names=begins_with_namespace if before is None else is_namespace_of(before, holder))
        for before, holder, held in zip((None, *nodes), nodes, nodes[1:], strict=False)
    )
    return _MODULE_PARTS.sub(lambda part: f"[{part[1]}]" if part[1].isdecimal() else f".{part[1]}", "".join(steps))


def suspended_frame(holder: object) -> types.FrameType | None:
    """The frame of a generator or a coroutine, with its variables; None for anything else, and once it is over."""
    return getattr(holder, FRAMES.get(type(holder), ""), None)


def attributes_of(holder: object) -> dict[str, object] | None:
    """The holder's own `__dict__`, looked up without running code of its class."""
    found = _own_value(holder, "__dict__")
    return found if type(found) is dict else None


def is_namespace_of(owner: object, namespace: object) -> bool:
    """Whether this is the namespace of an instance's attributes, or of a class's."""
    return type(namespace) is dict if issubclass(type(owner), type) else attributes_of(owner) is namespace


def has_attributes(thing: object) -> bool:
    """Whether it is an object with attributes of its own, as those of most classes that are written in Python."""
    return attributes_of(thing) is not None and type(thing).__module__ != "builtins"


def cell_contents(cell: types.CellType, empty: object = None) -> object:
    """What an enclosing function's variable holds; `empty` for one that has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return empty


def holder_path(nodes: Sequence[object]) -> str | None:
    """The path from the last of these objects that people know: an instance, a class, a function with variables."""
    for number in range(len(nodes) - 2, -1, -1):
        holder = nodes[number]
        if type(holder) is types.FunctionType and (name := variable_of(holder, nodes[number + 1])):
            return f"variable {name!r} of {holder.__qualname__}{write_path(nodes[number + 1 :])}"
        if isinstance(holder, type):
            name = write_path(nodes[number:])
            return f"{holder.__qualname__}{name}" if name else None
        if has_attributes(holder):
            return type(holder).__name__ + write_path(nodes[number:])
    return None


def variable_of(function: types.FunctionType, held: object) -> str | None:
    """The name of `held` inside a function, if it is a variable of the enclosing function."""
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return next((name for name, cell in names if cell_contents(cell) is held), None)


def frame_name(frame: types.FrameType) -> str:
    """A function and its file: where it happens to be says nothing about its variables.

    >>> import sys
    >>> frame_name(sys._getframe())
    '<module> (<doctest ...>)'
    """
    return f"{_function(frame.f_code)} ({file_name(frame.f_code.co_filename)})"


def _step(before: object, holder: object, held: object, *, names: bool) -> str:
    kind = type(holder)
    if issubclass(kind, dict):
        return _dict_step(before, holder, held, names=names)  # type: ignore[arg-type]
    if issubclass(kind, list | tuple | deque):
        return _index_step(before, holder, held)  # type: ignore[arg-type]
    if issubclass(kind, set | frozenset):
        return "{...}"
    if kind is types.FrameType:
        return _local_step(holder, held)  # type: ignore[arg-type]
    if kind in (types.TracebackType, types.CellType, SimpleQueue):
        return ""
    if kind is types.FunctionType:
        defaults = held is holder.__kwdefaults__  # type: ignore[attr-defined]
        return f", default arguments of {_function(holder.__code__)} " * defaults  # type: ignore[attr-defined]
    if kind is LRU_CACHE:
        return f", cache of {holder.__qualname__}"  # type: ignore[attr-defined]
    if kind in FRAMES:
        frame = suspended_frame(holder)
        return "" if frame is None else _local_step(frame, held)
    return _attribute_step(holder, held)


def _dict_step(before: object, holder: dict[object, object], held: object, *, names: bool) -> str:
    for key, value in list(dict.items(holder)):
        if value is held:
            return f".{key}" if names and type(key) is str else f"[{_short(key)}]"
    return "" if attributes_of(holder) is held else "[...]"


def _index_step(before: object, holder: Iterable[object], held: object) -> str:
    for index, item in enumerate(holder):
        if item is held:
            if type(before) is types.FunctionType and before.__closure__ is holder:
                return f", variable {before.__code__.co_freevars[index]!r} of {_function(before.__code__)}"
            if type(before) is types.FunctionType and before.__defaults__ is holder:
                names = before.__code__.co_varnames[before.__code__.co_argcount - len(before.__defaults__) :]
                return f", default of {names[index]!r} in {_function(before.__code__)}"
            return f"[{index}]"
    return ""


def _local_step(frame: types.FrameType, held: object) -> str:
    if type(held) is types.CellType:
        held = cell_contents(held, empty=frame)  # which is no variable's value
    name = next((name for name, value in frame_variables(frame).items() if value is held), None)
    return f", a variable of {frame_name(frame)}" if name is None else f", local {name!r} of {frame_name(frame)}"


def _attribute_step(holder: object, held: object) -> str:
    attributes = attributes_of(holder)
    if attributes is held:
        return ""
    is_class, is_in_c = (issubclass(type(holder), kind) for kind in (type, (types.BuiltinMethodType, BaseException)))
    in_c = ((name, getattr(holder, name, None)) for name in (_ASKED_FOR if is_in_c else ()))
    slots = ((name, _own_value(holder, name)) for name in _slots(holder))
    names = itertools.chain(in_c, list((attributes or {}).items()), vars(holder).items() if is_class else slots)
    nameless = "" if is_class else f" ({type(holder).__name__})"
    return next((f".{name}" for name, value in names if value is held), nameless)


def _slots(holder: object) -> list[str]:
    tensor = sys.modules["torch"].Tensor if "torch" in sys.modules else ()
    if issubclass(type(holder), tensor):
        return list(_TENSOR_PARTS)
    return [
        name for of in type(holder).__mro__ for name, one in vars(of).items() if type(one) is types.MemberDescriptorType
    ]


def _own_value(holder: object, name: str) -> object:
    try:
        return object.__getattribute__(holder, name)
    except (AttributeError, TypeError):
        return None


def _function(code: types.CodeType) -> str:
    return code.co_qualname.rpartition("<locals>.")[2]


def _short(key: object) -> str:
    if type(key) in (str, bytes, int, bool, float, type(None)):
        text = repr(key)
        return text if len(text) <= MAX_KEY_CHARS else text[: MAX_KEY_CHARS - 4] + "..."
    return f"<{type(key).__name__}>"


def in_peoples_words(holder: str) -> str:
    """The holder as people write it.

    >>> in_peoples_words("local 'teacher' of distil.main (distil.py)[3]")
    '`teacher[3]` of main()'
    """
    local = _LOCAL.fullmatch(holder)
    if local is not None:
        return f"`{local[1]}{local[3]}`" + ("" if local[2] == "<module>" else f" of {local[2]}()")
    return f"`{holder.removeprefix('__main__.')}`"
