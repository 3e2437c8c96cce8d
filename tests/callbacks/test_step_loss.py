"""The loss of a step in a monitor's verbose batches, against what the trainer itself logs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from forgather_mem import EpochMemoryMonitor
from forgather_mem.callbacks import MemoryCallback
from tests.training import make_trainer


class Monitor:
    """Notes what it is told."""

    def __init__(self, verbose_batches: int) -> None:
        self.verbose_batches = verbose_batches
        self.told: list[tuple[int, object]] = []

    def on_epoch_start(self) -> None:
        pass

    def on_batch_end(self, batch_idx: int, loss: object = None) -> None:
        self.told.append((batch_idx, loss))

    def on_epoch_end(self) -> None:
        pass


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_a_step_has_the_loss_that_the_trainer_logs(tmp_path: Path, num_micro_batches: int) -> None:
    monitor = Monitor(verbose_batches=2)
    trainer = make_trainer(
        tmp_path, [MemoryCallback(monitor=monitor, strict=True)], gradient_accumulation_steps=num_micro_batches,
        rows=16 * num_micro_batches, max_steps=6, logging_steps=1,
    )  # fmt: skip
    trainer.train()  # an epoch has 4 steps
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [batch_idx for batch_idx, _ in monitor.told] == [0, 1, 2, 3, 0, 1]
    losses = [loss for _, loss in monitor.told]
    assert losses[2:4] == [None, None]
    for step in (0, 1, 4, 5):
        assert type(losses[step]) is float
        assert losses[step] == pytest.approx(logged[step], abs=1e-4)


@pytest.mark.parametrize("monitor", [Monitor(verbose_batches=0), EpochMemoryMonitor(enabled=False)])
def test_without_verbose_batches_nothing_is_wrapped(tmp_path: Path, monitor: Any) -> None:
    class Looks(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            assert "training_step" not in vars(self)
            return super().training_step(*args, **kwargs)

    make_trainer(tmp_path, [MemoryCallback(monitor=monitor)], trainer_class=Looks).train()


def test_an_exception_of_the_step_goes_on_and_the_method_is_put_back(tmp_path: Path) -> None:
    class Fails(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            raise OverflowError("in the step")

    trainer = make_trainer(tmp_path, [MemoryCallback(monitor=Monitor(verbose_batches=5))], trainer_class=Fails)
    with pytest.raises(OverflowError, match="in the step"):
        trainer.train()
    assert "training_step" not in vars(trainer)


def test_a_method_of_the_users_own_is_called_and_put_back(tmp_path: Path) -> None:
    monitor = Monitor(verbose_batches=2)
    trainer = make_trainer(tmp_path, [MemoryCallback(monitor=monitor, strict=True)], max_steps=3)
    calls: list[float] = []

    def halved(*args: Any, **kwargs: Any) -> torch.Tensor:
        share = Trainer.training_step(trainer, *args, **kwargs) / 2
        calls.append(float(share))
        return share

    trainer.training_step = halved
    trainer.train()
    assert trainer.training_step is halved
    assert [loss for _, loss in monitor.told] == [*calls[:2], None]


def test_what_is_no_number_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(verbose_batches=2)
    trainer = make_trainer(tmp_path, [MemoryCallback(monitor=monitor)], max_steps=3)
    trainer.training_step = lambda *called: torch.zeros(()) if monitor.told else "no number"
    with pytest.raises(TypeError):  # the trainer adds it up
        trainer.train()
    assert "the loss of a step failed; training continues" in caplog.text
