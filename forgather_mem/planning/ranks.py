"""A training of several processes, planned as the first of them: the others don't exist, and nobody answers.

torch's "fake" process group does it, whose collectives return at once. All of it is set for good: it is called in a
process that plans and then ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Trainer
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.private_state import let_tensors_answer, replace, surround
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.units import MIB

Tensors = Callable[[torch.Tensor], torch.Tensor]
_OF_BUCKETS = "broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"


def prepare_ranks(models: Iterable[torch.nn.Module], mode: Pretending, notes: list[str]) -> None:
    """Let models that were made for several ranks, and then emptied, train as those of the first.

    Raises:
        PlanError: if the ranks are real: they would wait for this process, which has no part in what they do.
    """
    if not distributed.is_initialized():
        return
    if distributed.get_backend() != "fake":
        if (ranks := distributed.get_world_size()) > 1:
            raise PlanError(f"{ranks} processes train together: plan it in one, with backend 'fake'")
        distributed.distributed_c10d._update_default_pg(None)  # it has threads, which a fork does not have
        _begin_group(1)
    for model in models:
        if not isinstance(model, DistributedDataParallel):
            continue
        answer_gradients(mode.log, notes)
        with mode:
            same = {name: getattr(model, name) for name in _OF_BUCKETS}
            # Its buckets are for the parameters that it has now
            model.__init__(model.module, bucket_cap_mb=model.bucket_bytes_cap / MIB, **same)  # type: ignore[misc]


def answer_gradients(log: StorageLog, notes: list[str]) -> None:
    """Let DistributedDataParallel go on with its own gradients: a fake group answers None, which it refuses."""

    def answer(_, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and takes only its own
        log.saw(bucket.buffer(), "gradients")  # a second copy, unless they are its views
        answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        answer.set_result(bucket.buffer())
        return answer

    def made(make: Callable[..., None], model: DistributedDataParallel, *args: object, **keywords: object) -> None:
        make(model, *args, **keywords)
        model.register_comm_hook(None, answer)

    surround("torch.nn.parallel:DistributedDataParallel.__init__", made, notes)


def train_with_ranks(trainer: Trainer, ranks: int, mode: Pretending, on_device: bool, notes: list[str]) -> None:
    """Let a Trainer of this process train as the first of so many.

    Raises:
        PlanError: if it is in a process group already, or shards its model by another way than FSDP 2.
    """
    if distributed.is_initialized():
        raise PlanError("ranks: this process is in a process group already")
    _begin_group(ranks)
    answer_gradients(mode.log, notes)
    by = "FSDP" if shards_model(trainer) else "DistributedDataParallel"
    notes.append(f"This is one of {ranks} processes, with {by}.")

    def gathering(gather: Callable[..., object]) -> object:  # accelerate's are of two forms, which a fake group refuses
        return lambda output, tensor, *args, **how: gather(output.flatten(), tensor.flatten(), *args, **how)

    replace("torch.distributed:all_gather_into_tensor", gathering, notes)
    backend = "nccl" if on_device else "gloo"  # gathering is done otherwise with gloo
    of = sys.modules["accelerate.state"]
    for state in (of.PartialState._shared_state, of.AcceleratorState._shared_state):
        state.update(num_processes=ranks, distributed_type=of.DistributedType.MULTI_CPU, backend=backend)
    if shards_model(trainer):
        _shard_by_accelerate(trainer, mode, on_device, notes)


def _begin_group(ranks: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the group

    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


def shards_model(trainer: Trainer) -> bool:
    """Whether a Trainer is asked for FSDP; alone in its process it has none."""
    return bool(trainer.args.fsdp or getattr(trainer.args, "fsdp_plugin_args", None))


def _shard_by_accelerate(trainer: Trainer, mode: Pretending, on_device: bool, notes: list[str]) -> None:
    """Let accelerate shard the model where it prepares it, which it does with ranks on accelerators only."""
    asked = dict(getattr(trainer.args, "fsdp_plugin_args", None) or {})
    if asked.get("fsdp_version") != 2 or asked.get("cpu_offload"):
        raise PlanError("of FSDP in a Trainer version 2 of transformers 5 is planned, without cpu_offload")
    asked["cpu_ram_efficient_loading"] = False  # it changes loading alone
    plugin = sys.modules["accelerate.utils"].FullyShardedDataParallelPlugin(**asked)
    if trainer.accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(trainer.accelerator.mixed_precision)
    of = sys.modules["accelerate.state"]
    of.AcceleratorState._shared_state.update(distributed_type=of.DistributedType.FSDP, fsdp_plugin=plugin)
    trainer.is_fsdp_enabled = True
    # By it accelerate knows a parameter again in the optimizer; without memory there is none
    let_tensors_answer({"data_ptr": lambda tensor: tensor.untyped_storage()._cdata}, notes)
    own = init_device_mesh("cpu", (distributed.get_world_size(),))  # else the mesh is of what torch was built for

    def sharded(shard: Callable[..., object], module: nn.Module, mesh: object = None, **how: object) -> object:
        return shard(module, mesh=mesh or own, **how)

    surround("torch.distributed.fsdp:fully_shard", sharded, notes)
    if on_device:  # the whole model is on the host, and its shards are told when the training begins
        prepare = trainer.accelerator._prepare_fsdp2

        def prepared(*args: object) -> object:
            with mode.logging_to(StorageLog()):
                return prepare(*args)

        trainer.accelerator._prepare_fsdp2 = prepared


def empty_shards(model: nn.Module, unknown: Tensors) -> Iterator[nn.Parameter]:
    """Take the values from all shards where a unit of `fully_shard` gathers them: the parameters that have lost them.

    Args:
        model: The model.
        unknown: Makes a tensor like this one without values.
    """
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in getattr(state, "_fsdp_param_groups", ()):
            for sharded in group.fsdp_params:
                shard, memory = sharded.sharded_param, unknown(sharded._sharded_param_data)
                local = shard._local_tensor
                # It may be longer than its part of the parameter, so that all are of one size
                shard._local_tensor = memory.as_strided(local.size(), local.stride(), local.storage_offset())
                sharded._sharded_param_data, shard.grad = memory, None
                yield shard


def like_shard(tensor: torch.Tensor, unknown: Tensors) -> torch.Tensor:
    """A tensor like this one without values, spread as it is."""
    local = getattr(tensor, "_local_tensor", None)  # its class is not imported here, which takes long
    if local is None:
        return unknown(tensor)
    return type(tensor)(unknown(local), tensor._spec, requires_grad=False)  # type: ignore[attr-defined, call-overload, no-any-return]


def follow_resizing(log: StorageLog, notes: list[str]) -> None:
    """Tell the log, for good, of storages that grow or shrink: so are units gathered, and given up."""

    def resized(resize: Callable[..., None], storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        log.resized(storage)

    surround("torch:UntypedStorage.resize_", resized, notes)
