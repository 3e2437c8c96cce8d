"""`forgather_mem.plan`: the peak of a training before it begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from forgather_mem.planning.batches import Batch, PlannedShape, Trainer, Wanted
from forgather_mem.planning.highest import begun_highest_plan
from forgather_mem.planning.loop.script import Script, plan_function
from forgather_mem.planning.model import AliveThings
from forgather_mem.planning.result import PLANS, Plan
from forgather_mem.planning.trainer import plan_of_trainer


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
    is_trainer = callable(getattr(training, "train", None)) and hasattr(training, "get_train_dataloader")
    if isinstance(training, Script) or is_trainer:
        begun = begun_plan(training, wanted)
    elif not callable(training):
        raise TypeError(f"plan({type(training).__name__}): give a Trainer, or a function that does one step")
    elif model is None or batch is None:
        raise TypeError("plan(step, model, optimizer, batch): with a function, the model and a batch are needed")
    elif ranks != 1:
        raise TypeError("plan(step, ..., ranks=...): give the model of one rank, made in a 'fake' process group")
    elif arguments:
        raise TypeError(f"plan(step, ..., {next(iter(arguments))}=...): only a Trainer has arguments to change")
    else:
        models = model if isinstance(model, Sequence) else [model]
        optimizers = optimizer if isinstance(optimizer, Sequence) else [] if optimizer is None else [optimizer]
        begun = begun_highest_plan(functools.partial(plan_function, training, models, optimizers, batch, wanted))
    found = begun()
    if not callable(training) and wanted.shape == PlannedShape() and not arguments and ranks == 1:
        PLANS[training] = found
    return found


def begun_plan(training: Trainer | Script, wanted: Wanted, alive: AliveThings | None = None) -> Callable[[], Plan]:
    """The plan of a Trainer or a script, begun: several are made side by side.

    What it returns waits for the plan, and must be called.

    Args:
        training: The training.
        wanted: What is planned.
        alive: What there is in this process, where several plans share it: else a child looks for itself.
    """
    made = training.plan if isinstance(training, Script) else functools.partial(plan_of_trainer, training)
    return begun_highest_plan(functools.partial(made, wanted, alive))
