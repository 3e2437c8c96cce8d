"""The callback that every Trainer of a watched command gets."""

from pathlib import Path

import pytest

from forgather_mem.callbacks import MemoryCallback, SimpleGarbageCollector
from forgather_mem.formats.ring import read_ring
from forgather_mem.launch.watching import Watching
from forgather_mem.telemetry import run_session
from tests.training import make_trainer


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A template of the user's, as `forgather-mem run` hands it on; a fork of its parent."""
    monkeypatch.setenv(run_session.FOLDER, "")
    path = tmp_path / "mine.yaml"
    every = "{ collect_freq_epoch: {{ every }} }"
    path.write_text(f"trainer_callbacks:\n    - !singleton:forgather_mem.callbacks:SimpleGarbageCollector {every}\n")
    return str(path)


def test_it_attaches_the_template_and_writes_what_the_report_is_made_of(
    tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_session.TEMPLATE, template)
    monkeypatch.setenv(run_session.SETTINGS, "every=2")
    trainer = make_trainer(tmp_path / "out", callbacks=[Watching()], max_steps=3)
    (attached,) = (one for one in trainer.callback_handler.callbacks if type(one) is SimpleGarbageCollector)
    assert attached.collect_freq_epoch == 2
    trainer.train()
    written = {path.name: path for path in tmp_path.glob("out/forgather_mem/*/*")}
    assert {"memory.rank0.jsonl", "ring.rank0"} <= set(written)
    assert read_ring(written["ring.rank0"]).state[1:] == (3, "other", "finished")


def test_a_trainer_that_is_watched_already_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(run_session.TEMPLATE, raising=False)
    own = MemoryCallback()
    trainer = make_trainer(tmp_path, callbacks=[own, Watching()], max_steps=1)
    ours = [type(one) for one in trainer.callback_handler.callbacks if type(one).__module__.startswith("forgather_mem")]
    assert ours == [MemoryCallback, Watching]
