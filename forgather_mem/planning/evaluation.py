"""The evaluation of a planned Trainer, with what it gathers over the whole set.

It is the trainer's own loop, on a few batches: the first leaves what all but the last ones would, so that the last
ones meet all that is there by then.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from forgather_mem.planning.batches import Loader, Shape, Trainer, batches_of_longest_rows
from forgather_mem.planning.pretending import Pretending, tensors_among
from forgather_mem.planning.storage_log import StorageLog

_FEW = 2  # the last batch, and that before, whose results the loop still holds


class Evaluation:
    """Runs `trainer.evaluate()`; the trainer can't be used afterwards.

    Args:
        trainer: In its training.
        mode: Under which it runs.
        length: Of the rows, in place of their own.
        host: Told of what is moved to the host; None where all is on the host.
    """

    def __init__(self, trainer: Trainer, mode: Pretending, length: int | None, host: StorageLog | None) -> None:
        self._trainer, self.mode, self._host = trainer, mode, host
        self._load, self._wanted = trainer.get_eval_dataloader, Shape(None, length)
        self._every: int | None = trainer.args.eval_accumulation_steps
        self._arrays: list[object] = []
        # How many times as much as one batch leaves is there in place of the batches that are left out
        self._on_device, self._moved_before = Fraction(1), Fraction(1)

    def run(self) -> None:
        """Evaluate, in the phase "evaluate"."""
        trainer = self._trainer
        self.mode.log.begin("evaluate")
        trainer.get_eval_dataloader = self._few_batches
        if trainer.compute_metrics is not None:
            trainer.compute_metrics = lambda *_, **__: {}  # it asks for values, and is given arrays
        tools = sys.modules["transformers.trainer_pt_utils"]
        tools.nested_numpify = self._without_values  # type: ignore[attr-defined]
        container = tools.EvalLoopContainer
        container.add = self._adding(container.add)
        container.to_cpu_and_numpy = self._moving(container.to_cpu_and_numpy)
        container.get_arrays = lambda one: self._gathered(one)
        trainer.evaluate()

    def _few_batches(self, *of: object) -> Loader:
        """The trainer's loader, of the longest rows, which ends after a few batches."""
        loader, arguments = self._load(*of), self._trainer.args
        size, column = arguments.eval_batch_size, arguments.length_column_name
        batches_of_longest_rows(loader, size, column, self._wanted)
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

    def _adding(self, add: Callable[[Any, object], None]) -> Callable[[Any, object], None]:
        def added(container: Any, tensors: object) -> None:
            is_first = container.tensors is None
            if not is_first or container.do_nested_concat:
                tensors = _times(self._on_device, tensors) if is_first else tensors
            elif self._on_device > 1:  # a list has this one as well
                add(container, _times(self._on_device - 1, tensors))
            add(container, tensors)
            self._name(container.tensors)

        return added

    def _moving(self, move: Callable[[Any], None]) -> Callable[[Any], None]:
        def moved(container: Any) -> None:
            is_first = container.arrays is None
            with self._on_host():
                move(container)
                if is_first:
                    container.arrays = _times(self._moved_before, container.arrays)
                self._name(container.arrays)

        return moved

    def _gathered(self, container: Any) -> None:
        """Nothing to compute metrics of; what there is stays until the evaluation has ended."""
        container.to_cpu_and_numpy()
        self._arrays.append(container.arrays)

    def _without_values(self, value: object) -> object:
        """In place of numpy's arrays, which have values."""

        def on_host(tensor: torch.Tensor) -> torch.Tensor:
            there = tensor if self._host is None else tensor.new_empty(tensor.shape)
            return there.float() if tensor.dtype == torch.bfloat16 else there

        return tree_map_only(torch.Tensor, on_host, value)

    def _name(self, value: object) -> None:
        for tensor in tensors_among(value):
            self.mode.log.saw(tensor, "results")

    def _on_host(self) -> AbstractContextManager[None]:
        return nullcontext() if self._host is None else self.mode.logging_to(self._host)


class _First:
    """The first batches of a loader."""

    def __init__(self, loader: Loader, count: int) -> None:
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
