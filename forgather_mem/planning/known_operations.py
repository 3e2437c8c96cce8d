"""Operations that were met: what one makes has the size that it had for arguments of the same sizes.

torch finds a size in 0.1 ms, and a training asks again and again: this knows it in a fifth of that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

Key: TypeAlias = tuple[Hashable, ...]
_HOST, _META = torch.device("cpu"), torch.device("meta")
_PLAIN = torch.Tensor, torch.nn.Parameter


class _Made(NamedTuple):
    """A tensor that an operation makes.

    Attributes:
        place: Of the given tensor whose memory it has, or -1.
        is_given: Whether it is that one.
        num_bytes: Of its memory, where that is more than its size tells.
    """

    place: int
    is_given: bool
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    num_bytes: int


class KnownOperations:
    """Those that make tensors of this mode, which have no values."""

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._known: dict[Key, tuple[type, list[_Made | None]]] = {}
        with fake:
            self._state = dict(torch.empty(0, device=_HOST).__dict__)

    def key_of(
        self, func: torch._ops.OpOverload, args: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[Key | None, list[torch.Tensor]]:
        """All that the sizes of results depend on, if it can be told, and the tensors among the arguments.

        No size depends on a floating-point number, unless that is 0 or 1.
        """
        tensors: list[torch.Tensor] = []
        key: list[Hashable] = [func, torch.is_inference_mode_enabled(), torch.get_default_dtype()]
        is_all = self._describe(args, key, tensors)
        if keywords:
            key += keywords
            is_all &= self._describe(keywords.values(), key, tensors)
        return tuple(key) if is_all else None, tensors

    def _describe(self, values: Iterable[object], key: list[Hashable], tensors: list[torch.Tensor]) -> bool:
        is_all = True
        for one in values:
            kind = type(one)
            if kind is FakeTensor or kind in _PLAIN:
                tensors.append(one)  # type: ignore[arg-type]
                is_all &= self._describe_tensor(one, kind is FakeTensor, key)  # type: ignore[arg-type]
            elif isinstance(one, list | tuple):
                key.append(len(one))
                is_all &= self._describe(one, key, tensors)
            elif isinstance(one, torch.Tensor | Mapping | torch.UntypedStorage):  # a storage would be kept by the key
                tensors += tensors_among(one)
                is_all = False
            else:
                key.extend((kind, None if kind is float and one not in (0, 1) else one))  # type: ignore[arg-type]
        return is_all

    def _describe_tensor(self, tensor: torch.Tensor, is_blank: bool, key: list[Hashable]) -> bool:
        if tensor.layout is not torch.strided:
            return False
        key += (is_blank, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.requires_grad)
        key += tensor.is_neg(), tensor.is_conj()
        if is_blank:
            return tensor.fake_mode is self._fake and tensor.constant is None  # type: ignore[attr-defined]
        return not tensor.is_meta

    def results(self, key: Key, tensors: Sequence[torch.Tensor]) -> object:
        """What these tensors become, or `NotImplemented` where that is not known."""
        kind, rows = self._known.get(key, (None, []))
        if kind is None:
            return NotImplemented
        made = [None if row is None else self._made(row, tensors) for row in rows]
        return made[0] if kind is torch.Tensor else kind(made) if made else None

    def learn(self, key: Key, tensors: Sequence[torch.Tensor], result: object) -> None:
        """From now on they become this, if it can be known."""
        kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
        made = [result] if kind is torch.Tensor else [] if result is None else result
        if not isinstance(made, list | tuple) or not all(one is None or _is_simple(one) for one in made):
            return
        places = {one.untyped_storage()._cdata: place for place, one in enumerate(tensors)}
        of = [one.untyped_storage()._cdata for one in made if one is not None]
        new = [one for one in of if one not in places]
        # No two of them share new memory, and whose memory it is that is given is certain
        if len(set(new)) == len(new) and (len(places) == len(tensors) or new == of):
            self._known[key] = kind, [None if one is None else _row(one, tensors, places) for one in made]

    def blank(self, row: _Made, storage: torch.UntypedStorage | None = None) -> torch.Tensor:
        """A new tensor without values."""
        if storage is None and row.num_bytes:
            storage = torch.empty(row.num_bytes, dtype=torch.uint8, device=_META).untyped_storage()
        if storage is None:
            bare = torch.empty_strided(row.size, row.stride, dtype=row.dtype, device=_META)
        else:
            bare = torch.empty(0, dtype=row.dtype, device=_META).set_(storage, row.offset, row.size, row.stride)
        # What the class itself does in three times the time
        made = torch.Tensor._make_subclass(FakeTensor, bare, False, dispatch_device=True, device_for_backend_keys=_HOST)
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.__dict__.update(self._state)
        return made

    def _made(self, row: _Made, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if row.is_given:
            return tensors[row.place]
        return self.blank(row, None if row.place < 0 else tensors[row.place].untyped_storage())


def _is_simple(one: object) -> bool:
    return type(one) is FakeTensor and one.layout is torch.strided and not one.is_neg() and not one.is_conj()


def _row(one: torch.Tensor, tensors: Sequence[torch.Tensor], places: Mapping[int, int]) -> _Made:
    is_given = [place for place, other in enumerate(tensors) if other is one]
    place = is_given[0] if is_given else places.get(one.untyped_storage()._cdata, -1)
    size, stride, num_bytes = one.size(), one.stride(), one.untyped_storage().nbytes()
    whole = torch.empty_strided(size, stride, dtype=one.dtype, device=_META).untyped_storage().nbytes()
    offset = int(one.storage_offset())
    return _Made(
        place, bool(is_given), size, stride, offset, one.dtype, num_bytes if offset or num_bytes != whole else 0
    )


def tensors_among(value: object) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_among(one)
    elif isinstance(value, Mapping):
        yield from tensors_among(list(value.values()))
