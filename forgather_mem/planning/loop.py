"""Two steps of a loop without a Trainer, which compute nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Batch, Wanted, resized, shape_of
from forgather_mem.planning.changes import need_no_values, step_as_on_a_device
from forgather_mem.planning.model import empty, notes_on
from forgather_mem.planning.phases import STEPS, tell_phases
from forgather_mem.planning.pretending import Pretending, tensors_among
from forgather_mem.planning.ranks import prepare_ranks
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.storage_log import StorageLog


def plan_of_loop(
    step: Callable[[Batch], object],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    batch: Batch,
    wanted: Wanted,
) -> Plan:
    """What `step(batch)`, called twice, takes. The model can't be used afterwards: call it in a child.

    Raises:
        PlanError: if the step has an optimizer and neither went backward nor called it: it would tell too little.
    """
    if wanted.on_device:
        step_as_on_a_device()
    log = StorageLog()
    mode = Pretending(log, wanted.on_device)
    empty(model, optimizer, mode, log)
    prepare_ranks(model, mode)
    batch = resized(batch, wanted.shape.rows, wanted.shape.length)
    for tensor in tensors_among(batch):
        log.saw(tensor, "batch")
    tell_phases(log, model)
    need_no_values()
    with mode:
        for number in range(1, STEPS + 1):
            log.begin("forward", number)
            step(batch)
    if optimizer is not None and not {"backward", "optimizer"} & {stretch.phase for stretch in log.stretches}:
        raise PlanError(
            "step(batch) called no backward(): give a function that also does backward() and optimizer.step()"
        )
    return plan_of_log(log, shape_of(batch), notes=notes_on(model, wanted.on_device))
