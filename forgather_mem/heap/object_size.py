"""Sizes of objects: what one new piece holds, and how many bytes are freed with it."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from io import BytesIO, StringIO
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

from forgather_mem.heap.containers import container_kind
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.probes.tensors import storages_of, values_of
from forgather_mem.source.frame_variables import all_frames, frame_variables, is_function
from forgather_mem.source.source_lines import is_our_class, with_callers
from forgather_mem.units import KIB

if TYPE_CHECKING:
    import torch

_MOST_INSIDE = 3_000
_MOST_HELD = 1_000  # by one object
OTHER, NOT_ASKED, TUPLE, CONTAINER, RAW, TENSOR = range(6)
# Python gives the place of one that is freed to the next: its id says nothing, what is in it does
_REUSED = (dict, list, tuple)
# No objects are in these: their own size is all
WRITTEN = (StringIO, BytesIO)
_NUMBERS = frozenset((int, float, complex, bool, type(None)))
_FLAT = (array, bytearray, bytes, str, *WRITTEN)

_OTHERS_TOO = type, FunctionType, BaseException, ModuleType, weakref.ref  # what they lead to is not theirs alone


def is_tensor(thing: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor; asks its class, which runs no user code."""
    return is_tensor_class(type(thing))


def is_torch(thing: object, module: str, name: str) -> bool:
    """Whether it is of this class of torch's, as "nn", "Module"; False where torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(thing), getattr(getattr(torch, module), name))


def is_tensor_class(kind: type) -> bool:
    """Whether this is a tensor class."""
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def inside(samples: Sequence[object]) -> Iterator[object]:
    """The samples, their contents and the contents of these, at most a hundred objects."""
    todo: list[object] = list(samples[:2])
    for part in todo:
        yield part
        if len(todo) > 100:
            continue
        if isinstance(part, Mapping):
            todo += values_of(part)[:8]
        elif isinstance(part, list | tuple):
            todo += part[:8]
        elif not is_tensor(part) and not isinstance(part, _OTHERS_TOO):
            attributes = getattr(part, "__dict__", None)
            held = attributes.values() if attributes else gc.get_referents(part)  # slots, sets, queues, partials
            todo += itertools.islice(held, 8)


def deep_bytes(thing: object, known: Set[object], counted: set[object]) -> float:
    """Bytes freed with this object: itself and what only it leads to. `known` existed before; storages count once.

    Of a large container some are looked at and stand for the others, unless two of them lead to the same.
    """
    total = 0.0
    seen: set[int] = set()
    for_others: dict[object, float] = {}  # what was added for those that were not looked at
    accounts = Accounts()
    todo: list[tuple[Any, float]] = [(thing, 1.0)]
    while todo and len(seen) < _MOST_INSIDE:
        part, times = todo.pop()
        place, kind = id(part), type(part)
        account = accounts[kind]
        if account is None or (place in known and not (part is thing and kind in _REUSED)):
            continue
        if (kind is int and -6 < part < 257) or (kind is FrameType and any(one is part for one in all_frames())):
            continue
        own_bytes, led_to, stored_in = account
        if place not in seen:
            seen.add(place)
            size = _given_out(own_bytes(part, 64))
            total += size * times
            for_others[place] = size * (times - 1)
            held, each = _some_of(led_to(part), (_MOST_INSIDE - len(seen)) // (1 + len(todo)))
            atoms_bytes, rest = atoms_of(held, 3 * _MOST_HELD // len(seen))
            total += atoms_bytes * times * each
            todo += zip(rest, itertools.repeat(times * each))
        else:
            total -= for_others.pop(place, 0.0)
        for key, size in () if stored_in is None else stored_in(part):
            if key in counted:
                total -= for_others.pop(key, 0.0)
                continue
            counted.add(key)
            total += size * times
            for_others[key] = size * (times - 1)
    return total


def _given_out(size: float) -> float:
    """As Python's allocator and the C library hand it out: a float of 24 bytes takes 32."""
    return size + -size % 16


def atoms_of(values: Sequence[object], most: int) -> tuple[float, Iterable[object]]:
    """Bytes of the numbers and short texts among these, of which about so many are looked at; and the others.

    Of one that several hold each has a part. The caller's list is the only one beside theirs.
    """
    few = values[:: len(values) // max(8, most) | 1]
    # Four references are ours: of two lists, of the loop, and of `getrefcount`
    sizes = [_given_out(sys.getsizeof(one)) / max(1, sys.getrefcount(one) - 4) for one in few if _is_atom(one)]
    others = () if _NUMBERS.issuperset(map(type, values)) else itertools.filterfalse(_is_atom, values)
    return sum(sizes) * len(values) / max(1, len(few)), others


def _is_atom(thing: object) -> bool:
    return type(thing) in _NUMBERS or (type(thing) in (str, bytes) and sys.getsizeof(thing) < KIB)


_Account = tuple[Callable[..., float], Callable[..., list[object]], Callable[..., Sequence[tuple[object, int]]] | None]


class Accounts(dict[type, _Account | None]):
    """For each class, found once: its objects' own bytes, what they lead to, and the storages that they may share.

    None for what does not count. What an object leads to is freed with it if nothing else holds that.
    """

    def __missing__(self, kind: type) -> _Account | None:
        # What a class in Python says of its size may count what is in it, and change that: a DataFrame's does both
        own = _alone if type(kind.__sizeof__) is FunctionType else sys.getsizeof
        account: _Account | None = own, gc.get_referents, None
        # Ours are reached through the frames that an exception keeps
        if issubclass(kind, (type, ModuleType, CodeType)) or is_our_class(kind):
            account = None
        elif is_tensor_class(kind):
            account = (lambda _, default: 200.0), lambda _: [], storages_of
        elif kind in WRITTEN:
            account = (lambda part, default: default + _written(part)), gc.get_referents, None
        elif kind in _LED_TO or issubclass(kind, dict):
            account = sys.getsizeof, _LED_TO.get(kind, _entries), None
        elif issubclass(kind, threading.Thread):
            account = sys.getsizeof, lambda thread: gc.get_referents(thread) + _variables_of_thread(thread), None
        elif own is not _alone and is_array_class(kind):
            account = (lambda _, default: 112.0), _LED_TO.get(kind.__name__, gc.get_referents), _array_of
        return self.setdefault(kind, account)


def _alone(part: object, default: int) -> int:
    return object.__sizeof__(part)


def _array_of(part: object) -> list[tuple[object, int]]:
    """The array that has the memory, which views share, and its bytes."""
    array = getattr(part, "_ndarray", part)  # one of pandas has one of numpy
    base = getattr(array, "base", None)
    return [((None, id(array if base is None else base)), array_bytes(part))]


def _written(text: StringIO | BytesIO) -> int:
    """What is written to it: of a text Python has the size of an empty one, of bytes that of the spare room, too."""
    return 0 if text.closed else text.tell()


def _entries(mapping: dict[object, object]) -> list[object]:
    """What a dictionary leads to; Python does not tell of keys that are texts, and names in code are shared."""
    # Three references: the dictionary's, and two of ours
    keys = [key for key in dict.keys(mapping) if type(key) is str and sys.getrefcount(key) <= 3]
    return gc.get_referents(mapping) + keys


# What an object leads to, where that is not all that it refers to
_LED_TO: dict[type | str, Callable[..., list[object]]] = {
    FunctionType: lambda function: [*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__],
    # Without its module's names, which are a module's or a cell's own variables
    FrameType: lambda frame: list(frame_variables(frame).values()) if is_function(frame) else [],
    "ndarray": lambda array: list(array.ravel()) if array.dtype == object else [],  # Python does not tell
}


def _some_of(held: list[object], left: int) -> tuple[list[object], float]:
    """Those to look at, and how many each of them stands for; of one class, no more than are `left` for each."""
    most = min(_MOST_HELD, max(_MOST_HELD // 60, left)) if len({*map(type, held)}) == 1 else _MOST_HELD
    if len(held) <= most:
        return held, 1.0
    some = held[:: 2 * (len(held) // most) + 1]  # odd: keys and values of a dictionary take turns
    return (some, len(held) / len(some)) if not any(map(is_tensor, some)) else (held, 1.0)


class Sorts(dict[type, int]):
    """The sort of each class, found once per class. Classes above `CONTAINER` have bytes of their own."""

    def __missing__(self, kind: type) -> int:
        return self.setdefault(kind, _sort_of(kind))

    def own_bytes(self, node: object) -> int:
        """Size of the tensors, arrays and strings that it holds directly."""
        return sum(_bytes_of(one, sort) for one in gc.get_referents(node) if (sort := self[type(one)]) > CONTAINER)


def largest_held(node: object, known: Collection[int]) -> list[object]:
    """The largest of those that `own_bytes` counts, no tensor that is known, with others half as large or more."""
    held = [one for one in gc.get_referents(node) if _sort_of(type(one)) > CONTAINER]
    fixed = {id(one) for one in held if id(one) in known and (is_tensor(one) or is_array_class(type(one)))}
    new = sorted([one for one in held if id(one) not in fixed] or held, key=big_bytes, reverse=True)
    return [one for one in new[:4] if 2 * big_bytes(one) >= big_bytes(new[0])]


def big_bytes(thing: object) -> int:
    """Size of a tensor's storages, an array, or a string; 0 for others."""
    return _bytes_of(thing, _sort_of(type(thing)))


def has_graph(samples: list[object]) -> bool:
    """Whether a piece is, or holds, a tensor that keeps the graph it was computed by."""
    return any(is_tensor(part) and part.grad_fn is not None for part in inside(samples))


def keeps_frames(samples: list[object]) -> bool:
    """Whether a piece is an error that keeps the variables of all the functions it passed through."""
    return any(isinstance(part, BaseException) and part.__traceback__ is not None for part in inside(samples))


def _variables_of_thread(thread: threading.Thread) -> list[object]:
    """What the thread's running functions hold."""
    innermost = None if thread is threading.current_thread() else sys._current_frames().get(thread.ident or 0)
    return [value for frame in with_callers(innermost) for value in frame_variables(frame).values()]


def is_array(thing: object) -> bool:
    """Whether it is a tensor or has bytes as an array has them."""
    return is_tensor(thing) or array_bytes(thing) > 0


def array_bytes(part: object) -> int:
    """Size of an array including the base of a view, or of a picture of PIL; 0 for anything else."""
    kind = type(part)
    if not is_array_class(kind):
        return 0
    if kind.__module__.startswith("PIL."):
        return _picture_bytes(part)
    base = getattr(part, "base", None)
    size = getattr(base if hasattr(base, "nbytes") else part, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _picture_bytes(picture: object) -> int:
    """The pixels of a picture: one byte each with one band, else four."""
    attributes = attributes_of(picture) or {}
    core = attributes.get("_im", attributes.get("im"))  # before PIL 11
    width, height = getattr(core, "size", (0, 0))
    one_byte = str(getattr(core, "mode", "")) in ("1", "L", "P")
    return int(width) * int(height) * (1 if one_byte else 4)


def _bytes_of(thing: Any, sort: int) -> int:
    if type(thing) in _FLAT:
        return _written(thing) if type(thing) in WRITTEN else sys.getsizeof(thing)
    return sum(size for _, size in storages_of(thing)) if sort == TENSOR else array_bytes(thing)


def _sort_of(kind: type) -> int:
    if is_tensor_class(kind):
        return TENSOR
    if container_kind(kind) is not None:
        return CONTAINER
    if kind in (FrameType, FunctionType, TracebackType, MethodType):
        return NOT_ASKED
    return RAW if kind in _FLAT or is_array_class(kind) else TUPLE if kind is tuple else OTHER


def is_array_class(kind: type) -> bool:
    """Whether it is of a package whose objects have bytes of their own."""
    return str(kind.__module__).partition(".")[0] in ("numpy", "pandas", "mmap", "PIL", "jaxlib")
