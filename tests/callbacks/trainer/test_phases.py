"""The phases of a trainer built as Forgather's is. (Forgather itself: tests/forgather/run_callbacks.py.)"""

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent, Every
from tests.phase_notes import PhaseNotes


class Checkpoints:
    def save_checkpoint(self) -> None: ...


class LikeForgathers:
    """Events go to a list of callbacks, and the passes, the batches and the evaluation have methods of their own."""

    def __init__(self, folder: Path, callbacks: list[Any], fail_at: int = -1) -> None:
        self.callbacks = callbacks
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=0, epoch=0.0, max_steps=2, log_history=[])
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.checkpoint_manager = Checkpoints()
        self.batches: list[weakref.ref[torch.Tensor]] = []
        self.fail_at = fail_at

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def fire(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, f"on_{event}")(self.args, self.state, None, model=self.model)

    def train(self) -> None:
        self.fire("init_end")
        self._train_loop()

    def _train_loop(self) -> None:
        self.fire("train_begin")
        batches = iter(self._dataloader_iter(range(4)))
        for _ in range(2):
            self.fire("step_begin")
            for _ in range(2):
                self._forward_backward_step(next(batches))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.fire("optimizer_step")
            self.state.global_step += 1
            self.fire("step_end")
        assert next(batches, None) is None
        self._eval_loop()
        self.checkpoint_manager.save_checkpoint()
        self.fire("train_end")

    def _dataloader_iter(self, loader: Any) -> Iterator[torch.Tensor]:
        for number in loader:
            assert not any(batch() is not None for batch in self.batches), "a batch is kept while the next one is made"
            batch = torch.full((2, 4), float(number))
            self.batches.append(weakref.ref(batch))
            yield batch
            del batch

    def _forward_backward_step(self, batch: torch.Tensor) -> None:
        if self.state.global_step == self.fail_at:
            raise RuntimeError("in the step")
        self._backward(self.model(batch).sum())

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def _eval_loop(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(1, 4))


def watched(phases: PhaseNotes) -> list[Any]:
    """Two callbacks, which share one link: nothing is told twice."""
    return [MemoryCallback([Rule(Every(steps=1), [phases])]), MemoryCallback([Rule(Every(steps=1), [PhaseNotes()])])]


def test_each_phase_is_told_once_and_in_its_order(tmp_path: Path) -> None:
    phases = PhaseNotes()
    trainer = LikeForgathers(tmp_path, watched(phases))
    trainer.train()
    step = [*["data", "forward", "backward"] * 2, "optimizer"]
    assert phases.seen == ["startup", *step, *step, "data", "evaluate", "save"]


def test_before_the_optimizers_step_there_is_an_event_with_the_gradients_in_place(tmp_path: Path) -> None:
    seen: list[tuple[str, int, bool]] = []

    def note(moment: Any, sample: Any) -> dict[str, float]:
        seen.append((moment.event, moment.step, moment.objects["model"].weight.grad is not None))
        return {}

    LikeForgathers(tmp_path, [MemoryCallback([Rule(AtEvent("pre_optimizer_step", "step_end"), [note])])]).train()
    assert seen == [
        ("pre_optimizer_step", 1, True), ("step_end", 1, False), ("pre_optimizer_step", 2, True), ("step_end", 2, False)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [-1, 1])
def test_after_a_training_nothing_of_the_phases_is_left(tmp_path: Path, fail_at: int) -> None:
    trainer = LikeForgathers(tmp_path, watched(PhaseNotes()), fail_at)
    if fail_at < 0:
        trainer.train()
    else:
        with pytest.raises(RuntimeError, match="in the step"):
            trainer.train()
    assert [name for name, value in vars(trainer).items() if type(value).__module__.startswith("forgather_mem")] == []
    assert not vars(trainer.checkpoint_manager)
    assert not trainer.optimizer._optimizer_step_pre_hooks
    assert not trainer.optimizer._optimizer_step_post_hooks
