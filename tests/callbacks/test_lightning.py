"""Our callbacks in real Lightning."""

from __future__ import annotations

import gc
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import MemoryCallback, ScheduledGarbageCollector, TBMemoryLogger
from forgather_mem.plan import Rule
from forgather_mem.sinks import Capture
from forgather_mem.triggers import Every
from tests.test_loop import Order

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="the lightning extra is not installed")
    from forgather_mem.callbacks.lightning import LightningCallbacks

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.rank_zero.LightningDeprecationWarning"),
]


class Line(lightning.LightningModule):
    """One linear layer, on rows of four numbers."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fail_at = fail_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == self.fail_at:
            raise RuntimeError("in the step")
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def fit(folder: Path, callbacks: Any, *, validate: bool = False, fail_at: int = -1, **options: Any) -> Line:
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCallbacks(callbacks)] if callbacks else [],
        **{**settings, **options},
    )
    line = Line(fail_at)
    trainer.fit(line, rows, rows if validate else None)
    return line


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("validate", [False, True])
def test_the_order_of_events(tmp_path: Path, accumulation: int, validate: bool) -> None:
    order = Order()
    fit(tmp_path, [order], validate=validate, accumulate_grad_batches=accumulation)
    steps: list[tuple[str, int]] = []
    for step in range(4 // accumulation):
        steps.append(("step_begin", step))
        steps += [("substep_end", step)] * (accumulation - 1)
        steps += [("pre_optimizer_step", step), ("optimizer_step", step), ("step_end", step + 1)]
    last = 4 // accumulation
    assert order.events == [
        ("train_begin", 0),
        ("epoch_begin", 0),
        *steps,
        *([("evaluate", last)] if validate else []),
        ("epoch_end", last),
        ("train_end", last),
    ]


def test_our_callbacks_read_write_and_leave_nothing_behind(tmp_path: Path) -> None:
    capture = Capture()
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    rule = Rule(Every(steps=1), [lambda moment, sample: {"mine/epoch": moment.epoch}])
    fit(tmp_path, [MemoryCallback([rule], [capture]), TBMemoryLogger(), ScheduledGarbageCollector(every_steps=2)])
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before
    assert capture.series("mine/epoch") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert list(tmp_path.rglob("*tfevents*"))


def test_an_exception_gives_everything_back(tmp_path: Path) -> None:
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    with pytest.raises(RuntimeError, match="in the step"):
        fit(tmp_path, [MemoryCallback(), ScheduledGarbageCollector(every_steps=1)], fail_at=2)
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before


def test_training_is_bit_identical(tmp_path: Path) -> None:
    alone = fit(tmp_path, [])
    watched = fit(tmp_path, [MemoryCallback(), TBMemoryLogger()])
    assert torch.equal(alone.layer.weight, watched.layer.weight)
