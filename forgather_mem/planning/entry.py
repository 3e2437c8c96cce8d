"""`forgather_mem.plan`: the peak of a training before it begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Batch, PlannedShape, Trainer, Wanted, resized, shape_of
from forgather_mem.planning.changes import need_no_values, step_as_on_a_device
from forgather_mem.planning.isolation.child import in_a_child, notes_of
from forgather_mem.planning.model import empty, notes_on
from forgather_mem.planning.phases import STEPS, tell_phases
from forgather_mem.planning.pretending import Pretending, tensors_among, warm_up
from forgather_mem.planning.ranks import prepare_ranks
from forgather_mem.planning.result import PLANS, Plan, plan_of_log
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.planning.trainer import plan_of_trainer

if TYPE_CHECKING:
    from forgather_mem.planning.isolation.acts import Lines


def plan(
    training: Callable[[Batch], object] | Trainer,
    /,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    batch: Batch | None = None,
    *,
    rows: int | None = None,
    length: int | None = None,
    on_device: bool = False,
    ranks: int = 1,
    **arguments: object,
) -> Plan:
    """The peak of a training before it begins: the size of all its tensors, by phase and by what they are for.

        print(forgather_mem.plan(trainer))
        print(forgather_mem.plan(step, model, optimizer, batch))

    Two steps run in a forked child, in the Trainer's own loop; the second has the state of the optimizer. Weights and
    what is computed from them have a size there but no values, so that no memory is needed for them. Batches are
    real, of the longest rows that the dataset has. Nothing is changed here: neither the trainer nor the model, nor a
    random generator. A Trainer's evaluation is planned with all that it gathers. Not included: what is in no tensor,
    such as the context of a device.

    Args:
        training: A `transformers.Trainer`; or a function that does one step with a batch: forward, backward, and the
            step of the optimizer.
        model: With a function, the model that it trains.
        optimizer: With a function, its optimizer.
        batch: With a function, a real batch.
        rows: Plan batches of so many rows instead.
        length: Plan rows of so many tokens instead.
        on_device: Let optimizers work on all tensors at once, as torch does by default on a device.
        ranks: Plan a Trainer as the first of so many processes that train together, each with batches of its own.
        arguments: For a Trainer, `TrainingArguments` to plan instead of its own, or the model's `attn_implementation`
            or `dtype`: `plan(trainer, gradient_checkpointing=True)`.

    Raises:
        PlanError: if the training can't be planned, for example because its code asks for a loss's value; with the
            line that does.
        TypeError: if `training` is neither, or a function without its model and batch.
    """
    call: Callable[[], Plan]
    not_done: Lines = {}
    wanted = Wanted(PlannedShape(rows, length), on_device, ranks, arguments)
    if callable(getattr(training, "train", None)) and hasattr(training, "get_train_dataloader"):
        call = functools.partial(_plan_of_trainer, training, wanted, not_done)
    elif not callable(training):
        raise TypeError(f"plan({type(training).__name__}): give a Trainer, or a function that does one step")
    elif model is None or batch is None:
        raise TypeError("plan(step, model, optimizer, batch): with a function, the model and a batch are needed")
    elif ranks != 1:
        raise TypeError(
            "plan(step, ..., ranks=...): give the model of one of the ranks, made in a 'fake' process group"
        )
    elif arguments:
        raise TypeError(f"plan(step, ..., {next(iter(arguments))}=...): only a Trainer has arguments to change")
    else:
        planned = functools.partial(_plan_of_loop, training, model, optimizer, batch, wanted)
        call = functools.partial(in_a_child, planned, not_done=not_done)
    warm_up()
    found = call()
    found = replace(found, notes=(*found.notes, *notes_of(not_done, "\n".join(found.notes))))
    if not callable(training) and wanted.shape == PlannedShape() and not arguments and ranks == 1:
        PLANS[training] = found
    return found


def _plan_of_trainer(trainer: Trainer, wanted: Wanted, not_done: Lines) -> Plan:
    """Without the callbacks that fail in it, each of which a child has tried."""
    failed: dict[int, str] = {}
    while True:
        found = in_a_child(functools.partial(plan_of_trainer, trainer, wanted, failed), not_done=not_done)
        if isinstance(found, Plan):
            return found
        failed[found.number] = found.why


def _plan_of_loop(
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
