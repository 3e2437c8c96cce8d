"""A training of several processes, planned as the first of them: the others don't exist, and nobody answers.

torch's "fake" process group does it, whose collectives return at once. All of it is set for good: it is called in a
process that plans and then ends.
"""

from __future__ import annotations

import functools
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from forgather_mem.errors import PlanError
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.sharded import follow_resizing
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.units import MIB


def be_the_first_of(ranks: int, log: StorageLog) -> None:
    """From now on this process is rank 0 of so many, and its DistributedDataParallel needs no other.

    Raises:
        PlanError: if it is in a process group already.
    """
    if distributed.is_initialized():
        raise PlanError("ranks: this process is in a process group already")
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the group

    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    answer_gradients(log)


def prepare_ranks(model: torch.nn.Module, mode: Pretending) -> None:
    """Let a model that was made for several ranks, and then emptied, train as that of the first.

    Raises:
        PlanError: if the ranks are real: they would wait for this process, which has no part in what they do.
    """
    if distributed.is_initialized() and distributed.get_world_size() > 1 and distributed.get_backend() != "fake":
        raise PlanError(f"{distributed.get_world_size()} processes train together: plan it in one, with backend 'fake'")
    follow_resizing(mode.log)
    if isinstance(model, DistributedDataParallel):
        answer_gradients(mode.log)
        with mode:
            model.__init__(  # type: ignore[misc]  # its buckets are for the parameters that it has now
                model.module,
                broadcast_buffers=model.broadcast_buffers,
                bucket_cap_mb=model.bucket_bytes_cap / MIB,
                find_unused_parameters=model.find_unused_parameters,
                gradient_as_bucket_view=model.gradient_as_bucket_view,
                static_graph=model.static_graph,
            )


def answer_gradients(log: StorageLog) -> None:
    """Let DistributedDataParallel go on with its own gradients: a fake group answers None, which it refuses."""

    def answer(_, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and takes only its own
        log.saw(bucket.buffer(), "gradients")  # a second copy, unless they are its views
        answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        answer.set_result(bucket.buffer())
        return answer

    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def made(model: DistributedDataParallel, *args: object, **keywords: object) -> None:
        make(model, *args, **keywords)  # type: ignore[arg-type]
        model.register_comm_hook(None, answer)

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign,assignment]


def train_with_ranks(ranks: int, log: StorageLog, on_device: bool) -> None:
    """Let a Trainer of this process train as the first of so many."""
    be_the_first_of(ranks, log)
    backend = "nccl" if on_device else "gloo"  # gathering is done otherwise with gloo
    of = sys.modules["accelerate.state"]
    for state in (of.PartialState._shared_state, of.AcceleratorState._shared_state):
        state.update(num_processes=ranks, distributed_type=of.DistributedType.MULTI_CPU, backend=backend)
