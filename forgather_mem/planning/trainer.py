"""Two steps of a Trainer, in its own loop, which compute nothing.

The loop is the one that trains: data, accumulation, clipping and what a subclass does differently are as they will
be. An evaluation follows where there will be one. Logs and checkpoints are left out, and callbacks but for the user's.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Shape, Trainer, Wanted, batches_of_longest_rows, largest
from forgather_mem.planning.changes import apply_changes, need_no_values, step_as_on_a_device, train_on_the_host
from forgather_mem.planning.evaluation import Evaluation
from forgather_mem.planning.generation import generate_first_and_last_tokens
from forgather_mem.planning.model import empty, notes_on
from forgather_mem.planning.phases import STEPS, CallbackFailed, EnoughSteps, Steps, sorted_out, tell_phases
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.ranks import shards_model, train_with_ranks
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.units import format_bytes

# What has no part in a step, or needs values
_ARGUMENTS = {
    "max_steps": STEPS + 1,
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": False,
    "eval_on_start": False,
    "auto_find_batch_size": False,
    "torch_compile": False,
    "torch_empty_cache_steps": None,
    "push_to_hub": False,
    "skip_memory_metrics": True,
}


def plan_of_trainer(trainer: Trainer, wanted: Wanted, failed: Mapping[int, str]) -> Plan | CallbackFailed:
    """What two steps of this trainer take. The trainer can't be used afterwards: call it in a child.

    Args:
        trainer: The trainer.
        wanted: What to plan in place of its own.
        failed: Callbacks that can't be planned, by their place, and why.

    Returns:
        Its plan; or which callback has failed, without which it has to be planned in another child.

    Raises:
        PlanError: if it can't be planned.
    """
    train_on_the_host(trainer)
    need_no_values()
    apply_changes(trainer, wanted.changes)
    if wanted.on_device:
        step_as_on_a_device()
    log = StorageLog()
    mode = Pretending(log, wanted.on_device)
    if wanted.ranks > 1:
        train_with_ranks(trainer, wanted.ranks, mode, wanted.on_device)
    elif shards_model(trainer):
        raise PlanError("FSDP shards a model over several processes: say how many (--ranks N)")
    notes = ["torch.compile is planned as if it were off."] if getattr(trainer.args, "torch_compile", False) else []
    callbacks, left_out = sorted_out(trainer.callback_handler.callbacks, failed)
    notes += [*left_out, *notes_on(trainer.model, wanted.on_device)]
    for name, value in _ARGUMENTS.items():
        if hasattr(trainer.args, name):
            is_word = value is False and isinstance(getattr(trainer.args, name), str)  # of transformers 5
            object.__setattr__(trainer.args, name, "no" if is_word else value)
    trainer.model_init = None  # it has made the model
    shapes = _plan_batches(trainer, wanted.shape, notes)
    # A model that will be sharded is on the host: its shards alone are on a device
    is_whole = not (wanted.on_device and shards_model(trainer))
    empty(trainer.model, trainer.optimizer, mode, log if is_whole else StorageLog())
    host = StorageLog() if wanted.on_device else None
    evaluation = Evaluation(trainer, mode, wanted.shape.length, host)
    steps = Steps(log, trainer.model, callbacks, lambda: _evaluate(evaluation, trainer, log, notes))
    trainer.callback_handler.callbacks = [steps]
    tell_phases(log, trainer.model)
    try:
        with mode:
            trainer.train()
    except EnoughSteps:
        pass
    except CallbackFailed as failure:
        return failure
    if steps.kept_more_bytes > 0:
        more = format_bytes(steps.kept_more_bytes)
        notes.append(f"Callbacks keep {more} more after step 2 than after step 1; what later steps add is not planned.")
    if not shapes and wanted.shape != Shape():
        raise PlanError("batches of another size can't be planned: the data loader is not torch's")
    return plan_of_log(log, largest(shapes), trainer.args.gradient_accumulation_steps, notes, host)


def _evaluate(evaluation: Evaluation, trainer: Trainer, log: StorageLog, notes: list[str]) -> None:
    if trainer.eval_dataset is None and trainer.args.eval_strategy == "no":
        return
    generate_first_and_last_tokens(evaluation.mode, notes)
    try:
        evaluation.run()
    except Exception as error:  # noqa: BLE001  # the evaluation's own: the training is planned all the same
        log.forget()
        why = str(error) if isinstance(error, PlanError) else problem_of(error)
        notes.append(f"The evaluation is not planned: {why}")


def _plan_batches(trainer: Trainer, wanted: Shape, notes: list[str]) -> list[Shape]:
    """Let the trainer's data loader make the plan's batches; the shapes of those that it has made."""
    shapes: list[Shape] = []
    load = trainer.get_train_dataloader

    def planned() -> object:
        loader = load()
        rows, column = trainer.args.train_batch_size, trainer.args.length_column_name

        def tell(shape: Shape) -> None:
            if longest is not None and wanted.length is None and not shapes:
                notes.append(longest.note())
                notes.extend([longest.joined_note(shape.joined)] if shape.joined > 1 and not longest.is_batch else [])
            shapes.append(shape)

        longest = batches_of_longest_rows(loader, rows, column, wanted, tell)
        return loader

    trainer.get_train_dataloader = planned
    return shapes
