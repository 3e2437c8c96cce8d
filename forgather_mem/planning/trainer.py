"""Two steps of a Trainer, in its own loop, which compute nothing.

The loop is the one that trains: data, accumulation, clipping and what a subclass does differently are as they will
be. An evaluation follows where there will be one. Logs and checkpoints are left out, and transformers' callbacks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from fractions import Fraction
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from forgather_mem.errors import PlanError, did_you_mean
from forgather_mem.planning.batches import PlannedShape, Trainer, Wanted, largest
from forgather_mem.planning.generation import generate_first_and_last_tokens
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.phases import EnoughSteps, Steps
from forgather_mem.planning.loop.stage import Stage
from forgather_mem.planning.model import AliveThings
from forgather_mem.planning.private_state import surround
from forgather_mem.planning.ranks import shards_model, train_with_ranks
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog

_FEW = 2  # of an evaluation the last batch, and that before, whose results the loop still holds
# What has no part in a step, or needs values
_ARGUMENTS = {
    "logging_nan_inf_filter": False,
    "include_num_input_tokens_seen": False,
    "eval_on_start": False,
    "auto_find_batch_size": False,
    "torch_compile": False,
    "torch_empty_cache_steps": None,
    "push_to_hub": False,
    "skip_memory_metrics": True,
}

ATTENTION = "attn_implementation"
DTYPE = "dtype"
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # of transformers 5, and of 4


def plan_of_trainer(trainer: Trainer, wanted: Wanted, alive: AliveThings | None, answers: StandIns) -> Plan:
    """What two steps of this trainer take. The trainer can't be used afterwards: call it in a child.

    Args:
        trainer: The trainer.
        wanted: What to plan in place of its own.
        alive: What there is in this process, if it is known.
        answers: Asked for values.

    Raises:
        PlanError: if it can't be planned.
    """
    train_on_the_host(trainer)
    apply_changes(trainer, wanted.changes)
    stage = Stage(wanted, answers, bool(getattr(trainer.args, "torch_compile", False)))
    log, notes = stage.log, stage.notes
    if wanted.ranks > 1:
        train_with_ranks(trainer, wanted.ranks, stage.mode, wanted.on_device, notes)
    elif shards_model(trainer):
        raise PlanError("FSDP shards a model over several processes: say how many (--ranks N)")
    for name, value in _ARGUMENTS.items():
        if hasattr(trainer.args, name):
            is_word = value is False and isinstance(getattr(trainer.args, name), str)  # of transformers 5
            object.__setattr__(trainer.args, name, "no" if is_word else value)
    trainer.model_init = None  # it has made the model
    # A model that will be sharded is on the host: its shards alone are on a device
    is_whole = not (wanted.on_device and shards_model(trainer))
    optimizers = [] if trainer.optimizer is None else [trainer.optimizer]
    stage.empty([trainer.model], optimizers, alive or AliveThings(), log if is_whole else StorageLog())
    evaluation = Evaluation(trainer, stage)

    def at_end(*given: object, **keywords: object) -> None:
        if trainer.args.logging_strategy != "no":
            steps.on_log(*given, **keywords)
        if trainer.eval_dataset is not None or trainer.args.eval_strategy != "no":
            evaluation.run()
        if trainer.args.save_strategy != "no":
            steps.on_save(*given, **keywords)

    generate_first_and_last_tokens(notes)
    steps = Steps(stage, trainer, at_end)
    trainer.callback_handler.callbacks = [steps]
    try:
        with suppress(EnoughSteps), stage.mode:
            trainer.train()
    finally:
        steps.ahead.tell(has_all=False)
    notes += steps.rounds.notes()
    if not steps.shapes and wanted.shape != PlannedShape():
        raise PlanError("batches of another size can't be planned: the data loader is not torch's")
    return stage.plan([trainer.model], largest(steps.shapes), steps.each, steps.each)


class Evaluation:
    """Runs `trainer.evaluate()`; the trainer can't be used afterwards.

    Args:
        trainer: In its training.
        stage: Where it runs.
    """

    def __init__(self, trainer: Trainer, stage: Stage) -> None:
        self._trainer, self._mode, self._notes = trainer, stage.mode, stage.notes
        self._host = stage.mode.host
        self._load = trainer.get_eval_dataloader
        self._every: int | None = trainer.args.eval_accumulation_steps
        self._arrays: list[object] = []
        # How many times as much as one batch leaves is there in place of the batches that are left out
        self._on_device, self._moved_before = Fraction(1), Fraction(1)

    def run(self) -> None:
        """Evaluate, in the phase "evaluate"; where that fails it is noted, and not planned."""
        trainer = self._trainer
        self._mode.log.begin("evaluate")
        trainer.get_eval_dataloader = self._few_batches
        if trainer.compute_metrics is not None:
            trainer.compute_metrics = lambda *_, **__: {}  # it asks for values, and is given arrays
        tools = "transformers.trainer_pt_utils:"
        surround(f"{tools}nested_numpify", self._without_values, self._notes)
        surround(f"{tools}EvalLoopContainer.add", self._added, self._notes)
        surround(f"{tools}EvalLoopContainer.to_cpu_and_numpy", self._moved, self._notes)
        surround(f"{tools}EvalLoopContainer.get_arrays", self._gathered, self._notes)
        try:
            trainer.evaluate()
            self._arrays.clear()
        except Exception as error:  # noqa: BLE001  # the evaluation's own: the training is planned all the same
            self._mode.log.forget()
            self._notes.append(f"The evaluation is not planned: {problem_of(error)}")

    def _few_batches(self, *of: object) -> _First:
        """The trainer's loader, of the longest rows, which ends after a few batches."""
        loader, arguments = self._load(*of), self._trainer.args
        size = arguments.eval_batch_size
        # A set that does not tell its length is taken for one of a few batches
        batches = len(loader) if isinstance(loader.dataset, Sized) else _FEW
        chunk = min(self._every or batches, batches)
        few = min(chunk, _FEW)
        count = few if chunk == batches else 2 * few
        self._arrays.clear()
        self._on_device = self._moved_before = Fraction(1)
        if count < batches:
            # Several ranks have full batches, to the last
            rows = batches * size if arguments.world_size > 1 else len(loader.dataset)
            held = Fraction(rows, size) if chunk == batches else Fraction(chunk)
            self._on_device = held - (few - 1)
            self._moved_before = Fraction(rows, size * chunk) - 1 if chunk < batches else Fraction(1)
        object.__setattr__(arguments, "eval_accumulation_steps", few if self._every else None)
        return _First(loader, min(count, batches))

    def _added(self, add: Callable[[Any, object], None], container: Any, tensors: object) -> None:
        is_first = container.tensors is None
        if not is_first or container.do_nested_concat:
            tensors = _times(self._on_device, tensors) if is_first else tensors
        elif self._on_device > 1:  # a list has this one as well
            add(container, _times(self._on_device - 1, tensors))
        add(container, tensors)
        self._name(container.tensors)

    def _moved(self, move: Callable[[Any], None], container: Any) -> None:
        is_first = container.arrays is None
        with self._mode.logging_to(self._host):
            move(container)
            if is_first:
                container.arrays = _times(self._moved_before, container.arrays)
            self._name(container.arrays)

    def _gathered(self, _: object, container: Any) -> None:
        """Nothing to compute metrics of; what there is stays until the evaluation has ended."""
        container.to_cpu_and_numpy()
        self._arrays.append(container.arrays)

    def _without_values(self, _: object, value: object) -> object:
        """In place of numpy's arrays, which have values."""

        def on_host(tensor: torch.Tensor) -> torch.Tensor:
            there = tensor if self._host is None else tensor.new_empty(tensor.shape)
            return there.float() if tensor.dtype == torch.bfloat16 else there

        return tree_map_only(torch.Tensor, on_host, value)

    def _name(self, value: object) -> None:
        for tensor in tensors_among(value):
            self._mode.log.saw(tensor, "results")


class _First:
    """The first batches of a loader."""

    def __init__(self, loader: DataLoader[object], count: int) -> None:
        self.dataset, self._loader, self._count = loader.dataset, loader, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[object]:
        return itertools.islice(self._loader, self._count)


def _times(factor: Fraction, value: object) -> object:
    """The same with so many times the rows, unless that is once."""

    def made(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_empty((int(tensor.size(0) * factor), *tensor.shape[1:]) if tensor.dim() else ())

    return value if factor == 1 else tree_map_only(torch.Tensor, made, value)


def apply_changes(trainer: Trainer, changes: Mapping[str, object]) -> None:
    """Give a trainer that has not begun other arguments; also `attn_implementation` and `dtype`, which are the model's.

    Raises:
        PlanError: for an argument that its TrainingArguments don't have, or a value that they don't take.
    """
    known = [field.name for field in dataclasses.fields(trainer.args)]
    for name, value in changes.items():
        if name == ATTENTION:
            if not hasattr(trainer.model, "set_attn_implementation"):
                raise PlanError("this transformers can't change attn_implementation: a newer one can")
            trainer.model.set_attn_implementation(value)
        elif name == DTYPE:
            trainer.model.to(getattr(torch, str(value)))
        elif name not in known:
            meant = did_you_mean(name, known)
            raise PlanError(f"TrainingArguments have no {name!r}" + (f"; {meant}" if meant else ""))
        elif name in CHECKPOINTING:
            for alias in CHECKPOINTING:
                object.__setattr__(trainer.args, alias, value)
        else:
            kind = type(getattr(trainer.args, name))
            object.__setattr__(trainer.args, name, kind(value) if name == "optim" else value)
    if "fsdp" in changes and hasattr(trainer.args, "_process_fsdp_args"):
        trainer.args.fsdp_plugin_args = trainer.args._process_fsdp_args()
    if changes.get("bf16"):
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "bf16"


def train_on_the_host(trainer: Trainer) -> None:
    """Let a trainer go on without its device, which a forked child can't use; float16 needs one, and bfloat16 does not.

    Raises:
        PlanError: where several processes train together.
    """
    arguments, accelerator = trainer.args, trainer.accelerator
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise PlanError("DeepSpeed is not planned in a Trainer: plan the training of one process without it")
    if arguments.world_size > 1:
        raise PlanError(f"{arguments.world_size} processes train together: plan the training of one")
    arguments.__dict__["_setup_devices"] = accelerator.state.device = torch.device("cpu")
    arguments._n_gpu = min(1, arguments.n_gpu)
    accelerator.device_placement = False
    if accelerator.state._mixed_precision == "fp16":
        accelerator.state._mixed_precision, accelerator.scaler = "bf16", None
