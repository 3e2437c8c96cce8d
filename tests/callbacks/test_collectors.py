"""Callbacks that collect: at which epochs and steps, and what they say."""

from pathlib import Path

import numpy as np
import pytest
import torch

from forgather_mem.callbacks import CudaGarbageCollector, SimpleGarbageCollector
from tests.callbacks.common import captured
from tests.reclaim.things import a_cycle
from tests.training import make_trainer


def test_a_collector_follows_the_epochs_of_a_real_training(tmp_path: Path) -> None:
    callback, capture = captured([])
    collector = SimpleGarbageCollector(collect_freq_epoch=2)
    make_trainer(tmp_path, [callback, collector], max_steps=-1, num_train_epochs=5, rows=8).train()
    assert [row["calls"] for row in collector.summary.ledger] == [2]  # after epochs 2 and 4
    assert [(s.event, s.epoch) for s in capture.samples if "collect/objects" in s.values] == [
        ("epoch_end", 2.0),
        ("epoch_end", 4.0),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE:UserWarning")
def test_a_resumed_training_keeps_the_rhythm_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers 4.46 reads its checkpoints in no other way
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    settings = {"max_steps": -1, "num_train_epochs": 4, "rows": 16, "save_strategy": "steps", "save_steps": 6}
    make_trainer(tmp_path, **settings).train()  # 4 steps an epoch; a checkpoint in the middle of epoch 2
    callback, capture = captured([])
    trainer = make_trainer(tmp_path, [callback, SimpleGarbageCollector(collect_freq_epoch=2)], **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert [(s.step, s.epoch) for s in capture.samples if "collect/objects" in s.values] == [(8, 2.0), (16, 4.0)]


def test_garbage_in_a_cycle_is_gone_after_a_collection(tmp_path: Path, uncollected: None) -> None:
    alive = a_cycle()
    assert alive() is not None
    make_trainer(tmp_path, [SimpleGarbageCollector(collect_freq_step=1)], max_steps=1).train()
    assert alive() is None


def test_the_documents_plain_call_collects_after_every_nth_epoch_counted_from_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    collector = SimpleGarbageCollector(collect_freq_epoch=5, verbose=True)
    for epoch in range(10):
        collector.on_epoch_end(epoch, {"loss": 1.0})
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("Running garbage collection at end of epoch") == 2
    assert "end of epoch 5..." in text
    assert "end of epoch 10..." in text
    collector.on_epoch_end(epoch=4, logs=None)
    collector.on_epoch_end(np.int64(4), {})
    assert capsys.readouterr().err.count("end of epoch 5...") == 2


def test_verbose_collectors_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, [CudaGarbageCollector(collect_freq_step=3, verbose=True)], max_steps=6).train()
    said = capsys.readouterr()
    text = said.out + said.err
    assert text.count("Running garbage collection at end of step") == 2
    assert text.count("Garbage collection finished in") == 2
    assert "freed" in text
    if not torch.accelerator.is_available():
        assert text.count("no accelerator, so no device cache") == 1


def test_giving_a_step_period_makes_the_epoch_period_none() -> None:
    collector = SimpleGarbageCollector(collect_freq_step=5)
    assert (collector.collect_freq_epoch, collector.collect_freq_step) == (None, 5)
    assert SimpleGarbageCollector().collect_freq_epoch == 1
