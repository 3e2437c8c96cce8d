"""The phases of a checkpoint and of the sanity check in Lightning."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.phase_notes import PhaseNotes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="the lightning extra is not installed")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from forgather_mem.callbacks.lightning import LightningCallbacks
    from tests.callbacks.test_lightning import AS_LIGHTNING_WARNS, Line, fit

pytestmark = AS_LIGHTNING_WARNS


class Layer(Line):
    """A validation takes as many bytes at once as it is told."""

    def __init__(self, validation_bytes: int = 0) -> None:
        super().__init__()
        self.validation_bytes = validation_bytes

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.ones(self.validation_bytes, dtype=torch.uint8)


@pytest.mark.slow
@pytest.mark.fresh
def test_the_sanity_check_is_an_evaluation(tmp_path: Path) -> None:
    capture = Capture()
    fit(tmp_path, [MemoryCallback(), MemoryCallback([], [capture])], validate=True, line=Layer(200 << 20), max_epochs=2)
    named = {name for sample in capture.samples for name in sample.values if name.startswith("phase/host/")}
    assert {"phase/host/evaluate_peak_bytes", "phase/host/startup_peak_bytes"} <= named


class Phases(PhaseNotes):
    """Notes their ends, too."""

    def phase_end(self, phase: str) -> None:
        self.seen.append(f"/{phase}")


def test_a_checkpoint_is_in_no_other_phase(tmp_path: Path) -> None:
    phases = Phases()

    watching = LightningCallbacks([MemoryCallback([Rule(when=Every(steps=1), do=[phases])], [])])
    callbacks = [ModelCheckpoint(tmp_path, every_n_train_steps=5), watching]
    fit(tmp_path, [], validate=True, line=Layer(), max_epochs=2, enable_checkpointing=True, callbacks=callbacks)
    at = phases.seen.index("save")
    assert phases.seen[at - 2 : at + 3] == ["optimizer", "/optimizer", "save", "/save", "data"]
