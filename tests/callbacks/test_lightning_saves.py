"""When `ModelCheckpoint` saves, compared with the files that it writes."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import MemoryAlert, MemoryCallback
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.diagnose.alerts.checkpoint import SavePlan
from forgather_mem.diagnose.alerts.foretold import free_disk_bytes
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="the lightning extra is not installed")
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

    from forgather_mem.callbacks.lightning import LightningCallbacks, planned_saves
    from tests.callbacks.test_lightning import AS_LIGHTNING_WARNS

pytestmark = AS_LIGHTNING_WARNS


class Layer(lightning.LightningModule):
    """One linear layer; a validation takes as many bytes at once as it is told."""

    def __init__(self, validation_bytes: int = 0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.validation_bytes = validation_bytes

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        torch.ones(self.validation_bytes, dtype=torch.uint8)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class LeavesOut(Layer):
    """Writes less than its state."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"].clear()


class Sees(Callback):
    """Keeps what is planned, and the most files that are there at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.plan: SavePlan | None = None
        self.most = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callbacks.remove(self)  # one of ours would not be known to leave the files there
        self.plan = planned_saves(trainer)
        trainer.callbacks.append(self)
        save, remove = trainer.save_checkpoint, trainer.strategy.remove_checkpoint

        def saves(*arguments: Any, **keywords: Any) -> None:
            save(*arguments, **keywords)
            self.most = max(self.most, len(list(self.folder.glob("*.ckpt"))))

        trainer.save_checkpoint, trainer.strategy.remove_checkpoint = saves, remove


def fit(folder: Path, callbacks: list[Any], module: Layer | None = None, **options: Any) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        **{"max_epochs": 2, **options},
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=callbacks,
    )
    rows = torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=4)  # type: ignore[arg-type]
    trainer.fit(module or Layer(), rows, rows)


@pytest.mark.parametrize(
    ("given", "options", "num_checkpoints"),
    [
        ({"every_n_train_steps": 3, "save_top_k": -1}, {}, 6),
        ({"every_n_train_steps": 3}, {}, 6),
        ({"every_n_train_steps": 2, "save_top_k": -1}, {"accumulate_grad_batches": 2, "max_steps": 9}, 4),
        ({"every_n_epochs": 1, "save_top_k": -1}, {}, 2),
        ({}, {"max_steps": 5}, 1),
    ],
)
def test_the_plan_has_as_many_checkpoints_as_are_written(
    tmp_path: Path, given: dict[str, Any], options: dict[str, Any], num_checkpoints: int
) -> None:
    place = tmp_path / "saved"
    sees = Sees(place)
    fit(tmp_path, [ModelCheckpoint(place, **given), sees], **options)
    assert sees.plan is not None
    assert sees.plan.num_checkpoints == num_checkpoints
    assert sees.plan.most_at_once == sees.most
    assert sees.plan.folder == str(place)


@pytest.mark.parametrize(
    ("module", "callbacks"),
    [
        (LeavesOut(), [ModelCheckpoint(every_n_train_steps=3)]),
        (Layer(), [ModelCheckpoint(every_n_train_steps=3), ModelCheckpoint(every_n_epochs=1)]),
        (Layer(), [ModelCheckpoint(every_n_train_steps=3, save_top_k=0)]),
        (Layer(), [ModelCheckpoint(every_n_train_steps=30)]),
    ],
)
def test_of_what_is_not_certain_nothing_is_planned(tmp_path: Path, module: Layer, callbacks: list[Any]) -> None:
    sees = Sees(tmp_path)
    fit(tmp_path, [*callbacks, sees], module)
    assert sees.plan is None


def test_a_training_that_may_stop_early_needs_room_for_one(tmp_path: Path) -> None:
    sees = Sees(tmp_path)
    stops = EarlyStopping("loss", strict=False, check_on_train_epoch_end=True)
    fit(tmp_path, [ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1), stops, sees])
    assert sees.plan is not None
    assert (sees.plan.num_checkpoints, sees.plan.most_at_once) == (6, 1)


def test_a_checkpoint_for_which_the_disk_is_too_small_is_told_after_the_first_step(tmp_path: Path) -> None:
    alerts: list[Alert] = []

    class Large(Layer):
        """Has a weight that nothing has touched, until it is saved."""

        def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
            if self.trainer.global_step > 3:
                return super().state_dict(*arguments, **keywords)
            return {"weight": torch.empty(2 * (free_disk_bytes(tmp_path) or 0), dtype=torch.uint8, device="meta")}

    watching = LightningCallbacks([MemoryAlert({}, {}, 60, call=alerts.append)])
    fit(tmp_path, [ModelCheckpoint(tmp_path, every_n_train_steps=5), watching], Large())
    (alert,) = alerts
    assert (alert.name, alert.step, alert.full_at_step) == ("checkpoint", 1, 5)
    assert "dirpath" in alert.text


@pytest.mark.fresh
def test_the_sanity_check_is_an_evaluation(tmp_path: Path) -> None:
    capture = Capture()
    watching = LightningCallbacks([MemoryCallback(), MemoryCallback([], [capture])])
    fit(tmp_path, [watching], Layer(200 << 20))
    named = {name for sample in capture.samples for name in sample.values if name.startswith("phase/host/")}
    assert {"phase/host/evaluate_peak_bytes", "phase/host/startup_peak_bytes"} <= named


class Phases:
    """A work that notes when phases begin and end."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def begin(self, run: RunInfo) -> None:
        run.watch_phases(self)

    def phase_begin(self, phase: str) -> None:
        self.noted.append(phase)

    def phase_end(self, phase: str) -> None:
        self.noted.append(f"/{phase}")

    def __call__(self, moment: Moment, sample: Sample) -> dict[str, float]:
        return {}


def test_a_checkpoint_is_in_no_other_phase(tmp_path: Path) -> None:
    phases = Phases()

    watching = LightningCallbacks([MemoryCallback([Rule(when=Every(steps=1), do=[phases])], [])])
    fit(tmp_path, [ModelCheckpoint(tmp_path, every_n_train_steps=5), watching])
    at = phases.noted.index("save")
    assert phases.noted[at - 2 : at + 3] == ["data", "/data", "save", "/save", "data"]
