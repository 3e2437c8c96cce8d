"""Operations that were met: what one makes has the size that it had for arguments of the same sizes.

torch finds a size in 0.1 ms, and a training asks again and again: this knows it in a fifth of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

Key: TypeAlias = tuple[Hashable, ...]
Operation: TypeAlias = torch._ops.OpOverload
Arguments: TypeAlias = Sequence[object]
Keywords: TypeAlias = Mapping[str, object]
Saw: TypeAlias = Callable[[torch.UntypedStorage], object]
_HOST, _META = torch.device("cpu"), torch.device("meta")
_PLAIN = torch.Tensor, torch.nn.Parameter
_KEPT = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout))  # by a key
# The mode does more for them where sizes are symbols, or devices differ
_ALIKE = torch.ops.aten._unsafe_view.default, torch.ops.aten.embedding.default, torch.ops.aten.index.Tensor
_FROM_BEGIN = torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default  # of the memory, not of the tensor


class Made(NamedTuple):
    """A tensor that an operation makes.

    Attributes:
        place: Of the given tensor whose memory it has, or -1.
        offset: Where it begins after that tensor, or in new memory.
        memory: Of new memory that is larger than it, the numbers.
    """

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    place: int = -1
    offset: int = 0
    memory: int = 0


Known: TypeAlias = dict[Key, tuple[type, list[Made | int | None]]]  # a number is that of the given tensor


class KnownOperations:
    """Those that make tensors of this mode, which have no values.

    Args:
        fake: The mode.
        known: Where they are: another process may have met some.
    """

    def __init__(self, fake: FakeTensorMode, known: Known) -> None:
        self._fake, self._known = fake, known
        with temporarily_clear_interpreter_stack(), fake:  # a transform of torch.func would wrap it
            self._state = dict(torch.empty(0, device=_HOST).__dict__)

    def key_of(self, func: Operation, args: Arguments, keywords: Keywords) -> tuple[Key | None, list[torch.Tensor]]:
        """All that the sizes of results depend on, if it can be told, and the tensors among the arguments.

        No size depends on a floating-point number, unless that is 0 or 1.
        """
        tensors: list[torch.Tensor] = []
        key: list[Hashable] = [func.name(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), *keywords]
        is_all = self._describe((*args, *keywords.values()), key, tensors)
        if func in _FROM_BEGIN:
            key.append(tensors[0].storage_offset())
        return tuple(key) if is_all else None, tensors

    def _describe(self, values: Iterable[object], key: list[Hashable], tensors: list[torch.Tensor]) -> bool:
        is_all = True
        for one in values:
            kind = type(one)
            if isinstance(one, torch.Tensor):
                tensors.append(one)
                is_ours = kind is FakeTensor and one.fake_mode is self._fake and one.constant is None  # type: ignore[attr-defined]
                is_all = is_all and (is_ours or (kind in _PLAIN and not one.is_meta)) and one.layout is torch.strided
                if is_all:
                    key += (kind, one.shape, one.stride(), one.dtype)  # type: ignore[arg-type]
                    key += (one.requires_grad, one.is_neg(), one.is_conj(), one.is_inference())
            elif kind is list or kind is tuple:
                key.append(len(one))  # type: ignore[arg-type]
                is_all &= self._describe(one, key, tensors)  # type: ignore[arg-type]
            elif kind in _KEPT or not isinstance(one, Mapping | torch.UntypedStorage | torch.Generator):
                key += (kind, None if kind is float and one not in (0, 1) else one)  # type: ignore[arg-type]
            else:  # not to be kept by the key
                tensors += tensors_among(one)
                is_all = False
        return is_all

    def results(self, key: Key | None, tensors: Sequence[torch.Tensor], saw: Saw | None) -> object:
        """What these tensors become, or `NotImplemented` where that is not known; new memory is told."""
        if (found := self._known.get(key)) is None:  # type: ignore[arg-type]
            return NotImplemented
        kind, rows = found
        made = [tensors[row] if isinstance(row, int) else row and self._made(row, tensors, saw) for row in rows]
        return made[0] if kind is torch.Tensor else None if kind is type(None) else kind(made)

    def learn(self, key: Key, tensors: Sequence[torch.Tensor], result: object) -> None:
        """From now on they become this, if it can be known."""
        kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
        made = [result] if kind is torch.Tensor else [] if result is None else result
        if not isinstance(made, list | tuple) or not all(one is None or _is_simple(one) for one in made):
            return
        new = [memory for one in made if one is not None and (memory := _memory(one)) not in map(_memory, tensors)]
        rows = [one if one is None else _row(one, tensors) for one in made]
        if NotImplemented not in rows and len(set(new)) == len(new):  # no two of them share new memory
            self._known[key] = kind, rows

    def computed(self, func: Operation, args: Arguments, keywords: Keywords) -> object:
        """What it makes of tensors of this mode, which is entered.

        A mode prefers decompositions to torch's own kernel of sizes, and takes ten times as long.
        """
        if "device" not in keywords and _has_kernel(func):
            with suppress(NotImplementedError), in_kernel_invocation_manager(self._fake):  # where there is none
                result = func(*args, **keywords)
                return tree_map_only(lambda one: type(one) is torch.Tensor, self._in_memory_of, result)
        return func(*args, **keywords)

    def unknown(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of this size without values."""
        with no_dispatch():
            return self._made(Made(like.size(), like.stride(), like.dtype), ())

    def unknown_in(self, memory: torch.UntypedStorage, made: Made) -> torch.Tensor:
        """One in this memory."""
        with no_dispatch():
            return self._made(made, [torch.empty(0, dtype=torch.uint8, device=_META).set_(memory)])

    def _made(self, row: Made, tensors: Sequence[torch.Tensor], saw: Saw | None = None) -> torch.Tensor:
        if row.place >= 0:
            bare = torch.empty(0, dtype=row.dtype, device=_META)
            given = tensors[row.place]
            bare.set_(given.untyped_storage(), given.storage_offset() + row.offset, row.size, row.stride)
        elif row.memory:
            bare = torch.empty(row.memory, dtype=row.dtype, device=_META).as_strided(row.size, row.stride, row.offset)
        else:
            bare = torch.empty_strided(row.size, row.stride, dtype=row.dtype, device=_META)
        if row.place < 0 and saw is not None:  # else it is known since that was made
            saw(bare.untyped_storage())
        return self._in_memory_of(bare)

    def _in_memory_of(self, bare: torch.Tensor) -> torch.Tensor:
        # What the class itself does in three times the time
        made = torch.Tensor._make_subclass(FakeTensor, bare, False, dispatch_device=True, device_for_backend_keys=_HOST)
        made.__dict__.update(self._state)
        return made


@functools.cache
def _has_kernel(func: Operation) -> bool:
    """Whether torch's own kernel of sizes is enough: the mode does nothing else there, and given sizes stay."""
    is_alike = func.is_view or func in _ALIKE or not any(is_of(func) for is_of, _ in op_implementations_checks)
    return is_alike and torch.Tag.inplace_view not in func.tags


def _is_simple(one: object) -> bool:
    """Whether it can be made: in inference mode a view of a tensor made before is none of that mode."""
    is_plain = type(one) is FakeTensor and one.layout is torch.strided and not (one.is_neg() or one.is_conj())
    return is_plain and one.is_inference() == torch.is_inference_mode_enabled()  # type: ignore[attr-defined]


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _row(one: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Made | int:
    """`NotImplemented` for memory in other units, or of several."""
    given = [place for place, other in enumerate(tensors) if other is one]
    given = given or [place for place, other in enumerate(tensors) if _memory(other) == _memory(one)]
    offset = int(one.storage_offset())
    if given:
        of, is_certain = tensors[given[0]], len(given) == 1  # else another time they may be different ones
        if of is one and is_certain:
            return given[0]
        after = offset - int(of.storage_offset())
        is_alike = is_certain and one.dtype == of.dtype
        return Made(one.size(), one.stride(), one.dtype, given[0], after) if is_alike else NotImplemented
    whole = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=_META)
    made, there = whole.untyped_storage().nbytes(), one.untyped_storage().nbytes()
    return Made(one.size(), one.stride(), one.dtype, -1, offset, 0 if made == there else there // one.itemsize)


def tensors_among(value: object) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_among(one)
    elif isinstance(value, Mapping):
        yield from tensors_among(list(value.values()))
