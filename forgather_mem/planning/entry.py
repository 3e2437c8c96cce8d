"""`forgather_mem.plan`: the peak of a training before it begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Batch, PlannedShape, Trainer, Wanted, resized, shape_of
from forgather_mem.planning.changes import leave_uncompiled, need_no_values, step_as_on_a_device
from forgather_mem.planning.highest import begun_highest_plan
from forgather_mem.planning.isolation.child import notes_of
from forgather_mem.planning.loop.rounds import Rounds
from forgather_mem.planning.loop.script import Script
from forgather_mem.planning.model import empty, notes_on
from forgather_mem.planning.phases import tell_phases
from forgather_mem.planning.pretending import Pretending, tensors_among, warm_up
from forgather_mem.planning.ranks import prepare_ranks
from forgather_mem.planning.result import PLANS, Plan, plan_of_log
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog, Trace
from forgather_mem.planning.trainer import plan_of_trainer

if TYPE_CHECKING:
    from forgather_mem.planning.isolation.acts import Lines

_Given = TypeVar("_Given")


def plan(
    training: Callable[[Batch], object] | Trainer | Script,
    /,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
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

    Two steps run in a forked child, in the Trainer's own loop; the second has the state of the optimizer. A function
    is called until its optimizers have stepped, and after that for a whole round of all of them. Weights and
    what is computed from them have a size there but no values, so that no memory is needed for them. Batches are
    real, of the longest rows that the dataset has. Nothing is changed here: neither the trainer nor the model, nor a
    random generator. A Trainer's evaluation is planned with all that it gathers. Not included: what is in no tensor,
    such as the context of a device.

    Args:
        training: A `transformers.Trainer`; or a function that does one step with a batch: forward, backward, and the
            step of the optimizer.
        model: With a function, the model that it trains, or a list of several.
        optimizer: With a function, its optimizer, or a list of several.
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
    wanted = Wanted(PlannedShape(rows, length), on_device, ranks, arguments)
    if isinstance(training, Script) or _is_trainer(training):
        begun = begun_plan(training, wanted)
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
        optimizers = [] if optimizer is None else _listed(optimizer)
        begun = _begun(functools.partial(_plan_of_loop, training, _listed(model), optimizers, batch, wanted))
    found = replace(begun(), trace=Trace())
    if not callable(training) and wanted.shape == PlannedShape() and not arguments and ranks == 1:
        PLANS[training] = found
    return found


def begun_plan(training: Trainer | Script, wanted: Wanted) -> Callable[[], Plan]:
    """The plan of a Trainer or a script, begun: several are made side by side.

    What it returns waits for the plan, and must be called.
    """
    if isinstance(training, Script):
        return _begun(functools.partial(training.plan, wanted))
    return _begun(functools.partial(plan_of_trainer, training, wanted))


def _begun(made: Callable[[StandIns], Plan]) -> Callable[[], Plan]:
    warm_up()
    not_done: Lines = {}
    wait = begun_highest_plan(made, not_done)

    def found() -> Plan:
        plan = wait()
        return plan.with_notes(notes_of(not_done, "\n".join(plan.notes)))

    return found


def _is_trainer(training: object) -> bool:
    return callable(getattr(training, "train", None)) and hasattr(training, "get_train_dataloader")


def _listed(given: _Given | Sequence[_Given]) -> Sequence[_Given]:
    return given if isinstance(given, Sequence) else [given]


def _plan_of_loop(
    step: Callable[[Batch], object],
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    batch: Batch,
    wanted: Wanted,
    answers: StandIns,
) -> Plan:
    """What `step(batch)` takes, called until it is enough. The models can't be used afterwards: call it in a child.

    Raises:
        PlanError: if the step has an optimizer and neither went backward nor called it: it would tell too little.
    """
    if wanted.on_device:
        step_as_on_a_device()
    log = StorageLog()
    mode = Pretending(log, wanted.on_device, answers)
    answers.answer(holds=not wanted.on_device)
    given, batch = batch, resized(batch, wanted.shape.rows, wanted.shape.length)
    for tensor in tensors_among(batch):
        log.saw(tensor, "batch")
    notes = empty(models, optimizers, mode, log, given)
    prepare_ranks(models, mode)
    rounds = Rounds(log, optimizers)
    tell_phases(log, models, rounds.stepped)
    need_no_values()
    leave_uncompiled(notes)
    with mode:
        while rounds.go_on():
            log.begin("forward", rounds.step)
            step(batch)
            if not {"backward", "optimizer"} & {stretch.phase for stretch in log.stretches}:
                if not optimizers:
                    break
                raise PlanError(
                    "step(batch) called no backward(): give a function that also does backward() and optimizer.step()"
                )
    notes += [note for model in models for note in notes_on(model, wanted.on_device)]
    return plan_of_log(log, shape_of(batch), notes=[*notes, *rounds.notes()], host=mode.host)
