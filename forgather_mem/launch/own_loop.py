"""A script's own loop that is planned with changes: each is made in the child that plans, as its user would make it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Trainer
from forgather_mem.planning.model import roots
from forgather_mem.planning.result import Plan
from forgather_mem.probes.live_objects import live_objects

_CHECKPOINTS, _ATTENTION, _ROWS = "supports_gradient_checkpointing", "attn_implementation", "batch_size"
_OPTIMIZERS: dict[object, Callable[..., Optimizer]] = {"sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
Edit = Callable[[], object]


class OwnLoop:
    """What can be changed about a loop of the script's own.

    Attributes:
        rows, accumulation: Of the batch that failed, and of its step, once they are known.
        keeps_graphs: Whether one backward pass goes through several batches, once that is known.
    """

    def __init__(self) -> None:
        self.rows, self.accumulation, self.keeps_graphs = 0, 1, False
        self._models: list[Any] = [one for one in live_objects(nn.Module) if hasattr(one, _CHECKPOINTS)]
        self._loaders: list[Any] = live_objects(DataLoader, _BaseDataLoaderIter)

    def learn(self, plan: Plan, rows: int | None) -> None:
        """From a plan of the loop as it stands what its batches are.

        Args:
            plan: The plan.
            rows: Of the batch that failed; None if nobody has told.
        """
        self.rows = rows or plan.evaluation.rows or plan.rows or 0
        self.accumulation, self.keeps_graphs = plan.passes, plan.accumulation >= 2 * plan.passes

    @property
    def settings(self) -> RunSettings:
        """As a Trainer would call them."""
        names = ("per_device_train_batch_size", "per_device_eval_batch_size") if self.rows else ()
        arguments = {**dict.fromkeys(names, self.rows), "gradient_accumulation_steps": self.accumulation}
        return replace(settings_of(None, next(iter(self._models), None)), arguments=arguments, is_trainers=False)

    def edits_of(self, changed: dict[str, Any]) -> list[Edit]:
        """What changes the script to these values of `Change.set` and `in_script`, which are taken out.

        Args:
            changed: The values.

        Raises:
            PlanError: for a value that nobody can change for the user.
        """
        edits = list[Edit]()
        if changed.pop("gradient_checkpointing", False):
            edits += [one.gradient_checkpointing_enable for one in self._models if getattr(one, _CHECKPOINTS)]
        if attention := changed.pop(_ATTENTION, None):
            edits += [partial(one.set_attn_implementation, attention) for one in self._models]
        if rows := changed.pop("per_device_eval_batch_size", None):
            edits.append(lambda: self._evaluate(rows))
        if changed.pop("gradient_accumulation_steps", None):
            edits.append(_keep_gradients)
        if (optimizer := _OPTIMIZERS.get(changed.get("optim"))) is not None:
            edits.append(partial(_step_by, optimizer))
            del changed["optim"]
        if changed:
            raise PlanError(f"{next(iter(changed))} of a loop of the script's own is not planned")
        return edits

    def _evaluate(self, rows: int) -> None:
        """Of loaders with batches as large as that which failed, that go on nowhere yet.

        Raises:
            PlanError: if there is none.
        """
        busy = {id(one._dataset) for one in self._loaders if isinstance(one, _BaseDataLoaderIter)}
        such = [one for one in self._loaders if getattr(one, _ROWS, None) == self.rows and id(one.dataset) not in busy]
        if not such:
            raise PlanError("which loader makes the batches of the evaluation is not known")
        for one in such:
            one.batch_sampler.batch_size = rows


def _keep_gradients() -> None:
    """As between the micro-batches of a step."""
    for one in (Optimizer, nn.Module):
        one.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]


def _step_by(optimizer: Callable[..., Optimizer]) -> None:
    """Let all optimizers step as this one does."""
    for one in live_objects(Optimizer):
        parameters = [parameter for group in one.param_groups for parameter in group["params"]]
        one.step = optimizer(parameters).step  # type: ignore[method-assign]


def without_graphs(trainer: Trainer | None, of_evaluation: bool) -> None:
    """Let all that no optimizer trains compute without a graph; of an evaluation all models."""
    optimizers = live_objects(Optimizer)
    trained = {id(one) for of in optimizers for group in of.param_groups for one in group["params"]}
    if trainer is not None and not optimizers:
        trained = {id(one) for one in trainer.model.parameters() if one.requires_grad}
    tops = roots(live_objects(nn.Module))
    for part in [*tops, *(one for top in tops for one in top.children())]:
        parameters = list(part.parameters())
        if parameters and trained.isdisjoint(map(id, parameters)):
            part.forward = torch.no_grad()(part.forward)
    for top in tops if of_evaluation else ():
        top.forward = partial(_in_mode, top, (torch.no_grad()(top.forward), top.forward))


def _in_mode(model: nn.Module, calls: Sequence[Callable[..., object]], *args: object, **keywords: object) -> object:
    return calls[model.training](*args, **keywords)
