"""Operations that were met: what one makes has the size that it had for arguments of the same sizes.

torch finds a size in 0.1 ms, and a training asks again and again: this knows it in a fifth of that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

Key: TypeAlias = tuple[Hashable, ...]
Operation: TypeAlias = torch._ops.OpOverload
Arguments: TypeAlias = Sequence[object]
Keywords: TypeAlias = Mapping[str, object]
_HOST, _META = torch.device("cpu"), torch.device("meta")
_PLAIN = torch.Tensor, torch.nn.Parameter
_FROM_BEGIN = torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default  # of the memory, not of the tensor


class Made(NamedTuple):
    """A tensor that an operation makes.

    Attributes:
        place: Of the given tensor whose memory it has, or -1.
        offset: Where it begins after that tensor.
    """

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    place: int = -1
    offset: int = 0


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
                is_all &= self._describe_tensor(one, key)
            elif kind is list or kind is tuple:
                key.append(len(one))  # type: ignore[arg-type]
                is_all &= self._describe(one, key, tensors)  # type: ignore[arg-type]
            elif isinstance(one, Mapping | torch.UntypedStorage | torch.Generator):  # not to be kept by the key
                tensors += tensors_among(one)
                is_all = False
            else:
                key.extend((kind, None if kind is float and one not in (0, 1) else one))  # type: ignore[arg-type]
        return is_all

    def _describe_tensor(self, one: torch.Tensor, key: list[Hashable]) -> bool:
        kind = type(one)
        is_ours = kind is FakeTensor and one.fake_mode is self._fake and one.constant is None  # type: ignore[attr-defined]
        if not (is_ours or (kind in _PLAIN and not one.is_meta)) or one.layout is not torch.strided:
            return False
        key += (kind, one.shape, one.stride(), one.dtype)
        key += (one.requires_grad, one.is_neg(), one.is_conj(), one.is_inference())
        return True

    def results(self, key: Key, tensors: Sequence[torch.Tensor]) -> object:
        """What these tensors become, or `NotImplemented` where that is not known."""
        if key not in self._known:
            return NotImplemented
        kind, rows = self._known[key]
        made = [tensors[row] if isinstance(row, int) else row and self._made(row, tensors) for row in rows]
        return made[0] if kind is torch.Tensor else None if kind is type(None) else kind(made)

    def learn(self, key: Key, tensors: Sequence[torch.Tensor], result: object) -> None:
        """From now on they become this, if it can be known."""
        kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
        made = [result] if kind is torch.Tensor else [] if result is None else result
        if not isinstance(made, list | tuple) or not all(one is None or _is_simple(one) for one in made):
            return
        places = {_memory(one): place for place, one in enumerate(tensors)}
        of = [_memory(one) for one in made if one is not None]
        new = [one for one in of if one not in places]
        rows = [one if one is None else _row(one, tensors, places) for one in made]
        # No two of them share new memory, and whose memory it is that is given is certain
        if NotImplemented not in rows and len(set(new)) == len(new) and (len(places) == len(tensors) or new == of):
            self._known[key] = kind, rows

    def unknown(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of this size without values."""
        with no_dispatch():
            return self._made(Made(like.size(), like.stride(), like.dtype), ())

    def unknown_in(self, memory: torch.UntypedStorage, made: Made) -> torch.Tensor:
        """One in this memory."""
        with no_dispatch():
            return self._made(made, [torch.empty(0, dtype=torch.uint8, device=_META).set_(memory)])

    def _made(self, row: Made, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if row.place >= 0:
            bare = torch.empty(0, dtype=row.dtype, device=_META)
            given = tensors[row.place]
            bare.set_(given.untyped_storage(), given.storage_offset() + row.offset, row.size, row.stride)
        else:
            bare = torch.empty_strided(row.size, row.stride, dtype=row.dtype, device=_META)
        # What the class itself does in three times the time
        made = torch.Tensor._make_subclass(FakeTensor, bare, False, dispatch_device=True, device_for_backend_keys=_HOST)
        made.__dict__.update(self._state)
        return made


def _is_simple(one: object) -> bool:
    """Whether it can be made: in inference mode a view of a tensor made before is none of that mode."""
    if type(one) is not FakeTensor or one.layout is not torch.strided or one.is_neg() or one.is_conj():
        return False
    return one.is_inference() == torch.is_inference_mode_enabled()


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _row(one: torch.Tensor, tensors: Sequence[torch.Tensor], places: Mapping[int, int]) -> Made | int:
    """`NotImplemented` for new memory that is larger than the tensor in it, and for memory in other units."""
    given = [place for place, other in enumerate(tensors) if other is one]
    if given:
        return given[0]
    place = places.get(_memory(one), -1)
    if place >= 0:
        after = int(one.storage_offset() - tensors[place].storage_offset())
        is_alike = one.dtype == tensors[place].dtype
        return Made(one.size(), one.stride(), one.dtype, place, after) if is_alike else NotImplemented
    whole = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=_META)
    is_whole = whole.untyped_storage().nbytes() == one.untyped_storage().nbytes()
    return Made(one.size(), one.stride(), one.dtype) if is_whole else NotImplemented


def tensors_among(value: object) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_among(one)
    elif isinstance(value, Mapping):
        yield from tensors_among(list(value.values()))
