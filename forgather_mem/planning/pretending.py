"""A dispatch mode under which a training computes nothing: its tensors have a size and no values.

Values that don't depend on a weight are computed all the same. A mask, positions and lengths come from the batch: a
model may ask for one ("is anything padded?"), and what it does then is what it will do in the training. Where weights
choose among things, as experts, tokens or beams, numbers are supposed that choose each as often as the others, and what
comes of them is computed, too.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, cast

import torch
from torch._library.utils import zip_schema
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from forgather_mem.errors import PlanError
from forgather_mem.planning.known_operations import Arguments, Key, Keywords, KnownOperations, Operation, tensors_among
from forgather_mem.planning.recurrent import OF_ONEDNN, PACKS, packed_rows, workspace_bytes
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog

# More is not computed, so that planning a large batch takes no memory
_MOST_COMPUTED_BYTES = 2**24
# Nor more in all of what is there still, as where a data set keeps the rows that it has read: eight such batches. What
# is small, random or of whole numbers is computed all the same: conditions, the order of rows and masks come of it
_MOST_VALUES_BYTES, _SMALL_BYTES = 8 * _MOST_COMPUTED_BYTES, _MOST_COMPUTED_BYTES // 256
_ATEN = torch.ops.aten
_GATHERING, _SCATTERING = "fsdp.all_gather_copy_in.default", "c10d._reduce_scatter_base_.default"


def _named(*names: str) -> tuple[Operation, ...]:
    return tuple(getattr(_ATEN, name).default for name in names)


_CHOOSING = *_named("argmax", "argmin", "multinomial", "sort", "topk"), _ATEN.sort.stable, _ATEN.max.dim, _ATEN.min.dim
Count: TypeAlias = Callable[[int], int]  # of so many that a mask may choose, how many it does
# Their sum stays in the storage of what was summed, on the host (torch 2.13); a device was not tried
_SUMMED_IN_PLACE = _named("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
# What the host's kernel makes beside the result for a moment: of another type, or a copy of what is not contiguous
_BESIDE: dict[Operation, torch.dtype | None] = {_ATEN._safe_softmax.default: torch.bool}
_BESIDE |= dict.fromkeys(_named("_softmax", "_log_softmax", "native_layer_norm", "nll_loss_forward"))
_ASKING, _COMPARING = _named("_local_scalar_dense", "item"), _named("equal", "allclose")
# In a backward pass; with a mode torch makes another tensor of these, and of sums of gradients
_ADD, _PUT = _ATEN.add.Tensor, _ATEN.index_put.default
_IN_PASSES = frozenset((_ATEN.scatter_add.default, _ATEN.index_add.default, _ATEN.scatter.src, _ADD, _PUT))
_INDEXED = (_ATEN.index, _ATEN.index_put, _ATEN.index_put_)
_OF_PARTS = torch._C.DispatchKey.CompositeImplicitAutograd
_MASKS, _DEVICE = (torch.bool, torch.uint8), torch.ops.prim.device.default


class Pretending(TorchDispatchMode):
    """Inside it, operations on unknown tensors compute nothing; the log is told of each result.

    Args:
        log: Where storages are noted.
        on_device: Whether collectives are those of a device.
        answers: Asked for values that are not known.

    Attributes:
        log: The same.
        unknown: Makes a tensor like another, on the host, without values; a leaf, and no view.
        unknown_in: Makes one in memory that there is.
        host: On a device, where storages of the host are noted: a data set, and what is made of it alone.
        counts_values: Whether a size was that of known values: of packed rows, of what a mask chooses.
    """

    def __init__(self, log: StorageLog, on_device: bool = False, answers: StandIns | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answers = answers or StandIns()
        self.log, self._on_device = log, on_device
        self.host = StorageLog() if on_device else None
        self._fake, self.counts_values = FakeTensorMode(), False
        self._known = KnownOperations(self._fake, self._answers.known)
        self.unknown, self.unknown_in = self._known.unknown, self._known.unknown_in
        # Of operations whose results are computed the sizes, and those results that are not small
        self._small, self._valued = dict[Key, int](), StorageLog()
        self._overwritten: set[int] = set()  # storages alive, with values in which unknown ones were written
        self._sum: Callable[[], torch.Tensor | None] | None = None  # the last of two gradients, if it is not noted yet

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each operation asks whether it is compiled

    @contextmanager
    def logging_to(self, log: StorageLog | None) -> Iterator[None]:
        """What is made inside is noted there instead, if there is one."""
        own, self.log = self.log, log or self.log
        try:
            yield
        finally:
            self.log = own

    def __torch_dispatch__(
        self, func: Operation, types: Iterable[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if func is _DEVICE and type(args[0]) is FakeTensor and not self._fake.in_kernel_invocation:
            return args[0].fake_device  # asked as often as all else is
        with torch._C.DisableTorchFunctionSubclass():  # else each look at a tensor asks its class
            return self._dispatched(func, types, args, kwargs or {})

    def _dispatched(self, func: Operation, types: Iterable[type], args: Arguments, keywords: Keywords) -> object:
        key, given = self._known.key_of(func, args, keywords)
        if key is None and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # what it is made of comes here
        if func.namespace == "prim" or (key is None and not all(map(self._is_own, given))):
            return func(*args, **keywords)  # the former asks a tensor for its device
        log = self.log
        # On a device, unless all of them are the host's
        if self.host is not None and not any(self._is_unknown(one) or log.knows(one) for one in given):
            log = self.host if given or log.phase == "data" else log
        self._answers.operations += 1
        if self._sum is not None:
            made, self._sum = self._sum(), None
            log.saw(made) if made is not None else None
        for tensor in given:
            if type(tensor) is not FakeTensor and not tensor.is_meta:  # those are known from when they were made
                log.saw(tensor)
        is_sum = False
        # Of torch's own backward pass
        passes = torch._C._current_graph_task_id() != -1 and func in _IN_PASSES and not torch.is_grad_enabled()
        if passes and isinstance(args[0], FakeTensor) and (func is not _PUT or len(args) > 3):
            if func is not _ADD:
                return args[0]
            is_sum = _may_reuse(args)  # counts where the first may be gone
        result = self._known.results(key, given, None if is_sum else log.saw_storage)
        if result is NotImplemented:
            result = self._result(func, args, keywords, key, given)
            for tensor in tensors_among(result) if not is_sum else ():
                if self._is_own(tensor) and (isinstance(tensor, FakeTensor) or not tensor.is_meta):
                    log.saw(tensor)
        if is_sum:
            self._sum = weakref.ref(cast(torch.Tensor, result))
        # It finds rows that are masked as a whole, or copies what has gaps first
        if func in _BESIDE and not self._on_device and not (_BESIDE[func] is None and given[0].is_contiguous()):
            log.saw(self.unknown(torch.empty_like(given[0], dtype=_BESIDE[func], device="meta")))
        return result

    def _result(
        self, func: Operation, args: Arguments, keywords: Keywords, key: Key | None, given: Sequence[torch.Tensor]
    ) -> object:
        together = str(func) if func.namespace in ("c10d", "fsdp") else ""  # a name takes long to make
        if together == _GATHERING:  # views, which its schema does not say
            if not isinstance(args[1], torch.Tensor):
                raise PlanError("torch.distributed.fsdp.fully_shard is planned with torch 2.9 or newer")
            output, count, rank = cast(tuple[torch.Tensor, int, int], (args[1], *args[3:5]))
            return output.narrow(0, count * rank, count), output
        if together == _SCATTERING and not self._on_device:
            self.log.saw(self.unknown(given[1]))  # gloo works on a copy
        if not any(self._is_unknown(tensor) for tensor in given):
            return self._compute(func, args, keywords, key)
        if func.namespace == "c10d":
            return _together(func, args, keywords)
        # Such a one comes whole, and takes what its parts do
        if torch.is_inference_mode_enabled() and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _OF_PARTS):
            with self:
                return func._op_dk(_OF_PARTS, *args, **keywords)
        asked = self._answers.asked  # before it
        result = self._pretend(func, args, keywords)
        if key and asked == self._answers.asked and func.namespace == "aten" and FakeTensor in map(type, given):
            # Values that are known may be the size of the result, or are no more known
            told = [one for one in given if one.dtype in _MASKS] if func.overloadpacket in _INDEXED else []
            is_alike = all(isinstance(one, FakeTensor) for one in [*told, *_written(func, args, keywords)])
            if is_alike and key == self._known.key_of(func, args, keywords)[0]:  # else it changes a tensor's own size
                self._known.learn(key, given, result)
        return result

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Not one of those with which torch finds out what will be spread over ranks."""
        return getattr(tensor, "fake_mode", self._fake) is self._fake

    def _is_unknown(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return True
        return bool(self._overwritten) and tensor.untyped_storage()._cdata in self._overwritten

    def _pretend(self, func: Operation, args: Arguments, keywords: Keywords) -> object:
        if func.is_view and not isinstance(args[0], FakeTensor):  # of a tensor whose values no longer count
            with self:  # where nothing is differentiated it may be several
                result = func.decompose(*args, **keywords)
            return func(*args, **keywords) if result is NotImplemented else result
        if func is _ATEN.embedding.default and type(args[1]) is torch.Tensor:
            func(torch.empty(cast(torch.Tensor, args[0]).size(0), 1), args[1])  # fails as the training will
        if func in (*_ASKING, *_COMPARING):
            return self._asked(func, *cast(tuple[torch.Tensor, ...], args[:2]))
        # Whether it finds out which numbers are finite; so `isfinite` and `isinf` come here
        finds = func in (_ATEN.eq.Scalar, _ATEN.ne.Scalar) and args[1] in (math.inf, -math.inf)
        finds = finds or (func in (_ATEN.eq.Tensor, _ATEN.ne.Tensor) and args[0] is args[1])
        if (finds or func is _ATEN.isnan.default) and cast(torch.Tensor, args[0]).numel() <= _MOST_COMPUTED_BYTES:
            # All are: so these hold
            return torch.full(cast(torch.Tensor, args[0]).shape, func in (_ATEN.eq.Tensor, _ATEN.ne.Scalar))
        told = self._with_numbers(args) if func.overloadpacket in _INDEXED else args
        with self._fake:
            if func in _GREATEST:
                return _GREATEST[func](self._answers.count_of, *self._blank(told), **self._blank(keywords))
            if func is PACKS and not isinstance(args[1], FakeTensor):
                self.counts_values = True
                return packed_rows(*cast("tuple[torch.Tensor, torch.Tensor, bool]", args))
            result = self._by_meta_kernel(func, self._blank(told), self._blank(keywords))
        if func in _CHOOSING:
            given = zip_schema(func._schema, (*args,), {**keywords})
            dim = next((one for info, one in given if info.name == "dim"), -1)
            return self._choose(cast(torch.Tensor, args[0]), dim, result)
        if func is OF_ONEDNN and not self._on_device:
            workspace = torch.empty(workspace_bytes(args), dtype=torch.uint8, device="meta")
            result = (*result[:-1], self.unknown(workspace))
        written = _written(func, args, keywords) if func._schema.is_mutable else ()
        for tensor in written:
            if not isinstance(tensor, FakeTensor):
                storage = tensor.untyped_storage()
                self._overwritten.add(storage._cdata)
                weakref.finalize(storage, self._overwritten.discard, storage._cdata).atexit = False
        # Whoever writes into a tensor gets that one back, not a copy without values
        return written[0] if len(written) == 1 and isinstance(result, torch.Tensor) else result

    def _asked(self, func: Operation, one: torch.Tensor, other: torch.Tensor | None = None) -> float:
        """A value, or whether the two are equal, which sizes may tell."""
        if other is None:
            return self._answers.value(one.dtype)
        is_known = one is other or (func is _COMPARING[0] and one.shape != other.shape)
        return one is other if is_known else self._answers.value(torch.bool)

    def _by_meta_kernel(self, func: Operation, args: Sequence[Any], keywords: Keywords) -> Any:
        """Its result, or where the meta kernel differs from the host's, what that makes."""
        if func._schema.name == "aten::_grouped_mm":  # takes other numbers as well; torch 2.6 has none
            halves = tree_map_only(torch.Tensor, lambda one: one.bfloat16() if one.is_floating_point() else one, args)
            return func(*halves, **keywords).to(args[0].dtype)
        if func is _ATEN._embedding_bag_backward.default and args[9]:  # sparse: a row for each index
            of_row = args[0].new_empty(args[1].numel(), args[0].size(1))
            return torch.sparse_coo_tensor(args[1].view(1, -1), of_row, (args[6], args[0].size(1)))
        result = cast(torch.Tensor, self._known.computed(func, args, keywords))
        # That of the host does not follow the strides
        if func.overloadpacket in (_ATEN.native_batch_norm, _ATEN._native_batch_norm_legit) and not self._on_device:
            return result[0].contiguous(memory_format=suggest_memory_format(args[0])), *result[1:]
        if func in _SUMMED_IN_PLACE and not self._on_device and not result.dim():
            return result.new_empty(torch.broadcast_shapes(args[0].shape, args[1].shape)).as_strided((), ())
        if isinstance(result, torch.Tensor) and result.is_sparse and not result._nnz():  # values say how many rows
            *_, like = (None, *(one for one in tensors_among(args) if one.is_sparse))
            if like is None:
                raise PlanError(f"how many rows {func} makes is known only by computing it")
            indices, values = like._indices().clone(), like._values().clone()  # at most as many
            is_coalesced = func is _ATEN._coalesce.default or like.is_coalesced()
            return torch.sparse_coo_tensor(indices, values, like.size(), is_coalesced=is_coalesced)
        return result

    def _choose(self, of: torch.Tensor, dim: int, result: Any) -> object:
        """Let the last of the results choose among these."""
        *values, numbers = result if isinstance(result, tuple) else (result,)
        if numbers.nbytes <= _MOST_COMPUTED_BYTES:
            shape = numbers.shape if numbers.dim() == of.dim() > 0 else (*numbers.shape, 1)
            most = of.numel() if numbers.numel() == 1 else of.size(dim)  # the one may be of all
            numbers = self._answers.chosen(shape, most).view(numbers.shape)
        return (*values, numbers) if values else numbers

    def _with_numbers(self, args: Sequence[Any]) -> Sequence[object]:
        """Arguments in which a mask is the numbers of what it chooses, or may choose: so the size of that is known."""
        indices: list[object] = []
        for index in args[1]:
            if not isinstance(index, torch.Tensor) or index.dtype not in _MASKS:
                indices.append(index)
            elif self._is_unknown(index):
                with self._fake:
                    indices += _numbers_of_all(self._answers.count_of, self._blank(index)).unbind(1)
            else:
                self.counts_values = True
                indices += index.nonzero().unbind(1)
        return [args[0], indices, *args[2:]]

    def _blank(self, value: Any) -> Any:
        """Arguments with tensors without values in place of all others; called in fake mode."""
        if all(isinstance(one, FakeTensor) for one in tensors_among(value)):  # nearly always
            return value
        return tree_map_only(torch.Tensor, lambda one: one if isinstance(one, FakeTensor) else self.unknown(one), value)

    def _compute(self, func: Operation, args: Arguments, keywords: Keywords, key: Key | None) -> object:
        if func._schema.is_mutable or func.is_view:
            return func(*args, **keywords)
        left = max(_SMALL_BYTES, min(_MOST_COMPUTED_BYTES, _MOST_VALUES_BYTES - self._valued.alive_bytes))
        size = self._small.get(key, left + 1)  # type: ignore[arg-type]
        if size > left:
            made, size = list[torch.Tensor](), 0
            with suppress(RuntimeError, NotImplementedError), self._fake:  # its size depends on values
                unknown = self._known.computed(func, self._blank(args), self._blank(keywords))
                made = list(tensors_among(unknown))
                size = sum(tensor.untyped_storage().nbytes() for tensor in made)
            is_needed = torch.Tag.nondeterministic_seeded in func.tags or not all(map(torch.is_floating_point, made))
            if size > (_MOST_COMPUTED_BYTES if is_needed else left):
                return unknown
            if key is not None:
                self._small[key] = size
        result = func(*args, **keywords)
        for tensor in tensors_among(result) if size > _SMALL_BYTES else ():
            self._valued.saw(tensor, "batch")
        return result


def _together(func: Operation, args: Arguments, keywords: Keywords) -> object:
    """What ranks do together, in place, with empty tensors: what it returns to wait for would keep those given."""
    given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def emptied(tensor: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(0, dtype=tensor.dtype)
        given[id(empty)] = empty, tensor
        return empty

    args, keywords = tree_map_only(torch.Tensor, emptied, (list(args), dict(keywords)))
    return tree_map_only(torch.Tensor, lambda empty: given[id(empty)][1], func(*args, **keywords))


def warm_up() -> None:
    """Import what torch imports at the first operation without values, before a child is forked that needs it.

    What is imported is no garbage, which would be looked for meanwhile, in all that there is.
    """
    collects = gc.isenabled()
    gc.disable()
    with FakeTensorMode():
        made = (torch.empty(2, 2) @ torch.empty(2, 2)).softmax(-1)
    made.detach()  # where there is no mode, ranks are asked for
    gc.enable() if collects else None


def _may_reuse(args: Arguments) -> bool:
    """Whether it is a sum of two gradients that torch makes in the first where nobody else has that."""
    first, second = cast(tuple[torch.Tensor, object], args[:2])
    if len(args) != 2 or getattr(second, "shape", None) != first.shape or first.layout != torch.strided:
        return False
    storage = first.untyped_storage()
    is_dense = first.is_contiguous() or first.nbytes == storage.nbytes()  # neither expanded, nor with gaps
    return is_dense and torch._C._storage_Use_Count(storage._cdata) == 2  # by this tensor, and from here


def _numbers_of_all(count: Count, mask: torch.Tensor) -> torch.Tensor:
    return mask.new_empty((count(mask.numel()), mask.dim()), dtype=torch.long)


def _alignments(count: Count, logits: torch.Tensor, labels: torch.Tensor, *_: object, **__: object) -> object:
    """As if a label had all tokens."""
    rows, steps = logits.size(-2), logits.size(0)
    return logits.new_empty(rows), logits.new_empty(rows, steps, 2 * count(labels.size(-1)) + 1)


# What is as large as values make it, at its largest
_GREATEST: dict[Operation, Callable[..., object]] = {
    _ATEN.nonzero.default: _numbers_of_all,
    _ATEN.masked_select.default: lambda n, *of: of[0].new_empty(n(torch.broadcast_tensors(*of)[0].numel())),
    _ATEN._ctc_loss.Tensor: _alignments,
}


def _written(func: Operation, args: Arguments, keywords: Keywords) -> list[torch.Tensor]:
    """The tensors that it writes into."""
    infos = ((one.alias_info, value) for one, value in zip_schema(func._schema, (*args,), {**keywords}))
    return list(tensors_among([value for info, value in infos if info is not None and info.is_write]))
