"""Two steps of a Trainer, in its own loop, which compute nothing.

The loop is the one that trains: data, accumulation, clipping and what a subclass does differently are as they will
be. An evaluation follows where there will be one. Callbacks, logs and checkpoints are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from forgather_mem.errors import PlanError
from forgather_mem.heap.source_lines import is_our_class
from forgather_mem.planning.batches import Shape, Wanted, batches_of_longest_rows, largest
from forgather_mem.planning.changes import apply_changes, step_as_on_a_device, train_on_the_host
from forgather_mem.planning.evaluation import Evaluation
from forgather_mem.planning.generation import generate_first_and_last_tokens
from forgather_mem.planning.model import empty
from forgather_mem.planning.phases import tell_phases
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.ranks import shards_model, train_with_ranks
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.storage_log import StorageLog

Trainer: TypeAlias = Any  # of transformers, which is not imported here
STEPS = 2  # the first has no state of the optimizer yet
# What has no part in a step, or needs values
_ARGUMENTS = {
    "max_steps": STEPS + 1,
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": False,
    "eval_on_start": False,
    "auto_find_batch_size": False,
    "torch_compile": False,
    "torch_empty_cache_steps": None,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataloader_persistent_workers": False,
    "dataloader_pin_memory": False,
    "push_to_hub": False,
    "skip_memory_metrics": True,
}


class _EnoughSteps(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


def plan_of_trainer(trainer: Trainer, wanted: Wanted) -> Plan:
    """What two steps of this trainer take. The trainer can't be used afterwards: call it in a child.

    Args:
        trainer: The trainer.
        wanted: What to plan in place of its own.

    Raises:
        PlanError: if it can't be planned.
    """
    train_on_the_host(trainer)
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
    notes += _left_out(trainer.callback_handler.callbacks)
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
    trainer.callback_handler.callbacks = [
        _Steps(log, trainer.model, lambda: _evaluate(evaluation, trainer, log, notes))
    ]
    tell_phases(log, trainer.model)
    try:
        with mode:
            trainer.train()
    except _EnoughSteps:
        pass
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
                if wanted.rows is None and shape.rows == 1 < rows:
                    notes.append("The collator joins rows, so that other batches are shorter: an upper bound.")
            shapes.append(shape)

        longest = batches_of_longest_rows(loader, rows, column, wanted, tell)
        return loader

    trainer.get_train_dataloader = planned
    return shapes


def _left_out(callbacks: Iterable[object]) -> list[str]:
    """A note on callbacks that may keep tensors: all but transformers' and our own."""
    kinds = [kind for kind in map(type, callbacks) if not is_our_class(kind)]
    names = [kind.__name__ for kind in kinds if not kind.__module__.startswith("transformers.")]
    return [f"Callbacks are not in the plan: {', '.join(dict.fromkeys(names))}."] if names else []


class _Steps:
    """In place of the trainer's callbacks: tells steps, and ends the training after the last."""

    def __init__(self, log: StorageLog, model: torch.nn.Module, at_end: Callable[[], None]) -> None:
        self._log, self._model, self._at_end = log, model, at_end
        self._was_last_of_epoch = False

    def on_train_begin(self, *_: object, **__: object) -> None:
        for tensor in (*self._model.parameters(), *self._model.buffers()):  # as shards, where they are sharded
            self._log.saw(tensor, "parameters")
        self._log.begin("data")

    def on_step_end(self, _: object, state: Trainer, *__: object, **___: object) -> None:
        is_last = self._log.step >= STEPS
        if is_last and (state.epoch < 1 or self._was_last_of_epoch):
            self._at_end()
            raise _EnoughSteps
        # The last step of an epoch has fewer batches, and none loaded ahead: the next one belongs to it, too
        self._was_last_of_epoch = is_last
        self._log.begin("data", min(STEPS, self._log.step + 1))

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_, **__: None  # of other events
