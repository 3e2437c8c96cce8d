"""The callback that every Trainer of a watched command gets."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainerCallback

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.formats.ring import read_ring
from forgather_mem.launch.watching import Watching, add_to
from forgather_mem.telemetry import run_session
from tests.training import make_trainer


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A template of the user's, as `forgather-mem run` hands it on; a fork of its parent."""
    monkeypatch.setenv(run_session.FOLDER, "")
    path, every = tmp_path / "mine.yaml", "{ collect_freq_epoch: {{ every }} }"
    path.write_text(f"trainer_callbacks:\n    - !singleton:forgather_mem.callbacks:SimpleGarbageCollector {every}\n")
    return str(path)


class KeepsItsOwn:
    """A trainer with a list of its callbacks and no handler of them, as Forgather's."""

    def __init__(self, callbacks: list[TrainerCallback]) -> None:
        self.callbacks, self.args, self.state = callbacks, SimpleNamespace(output_dir=None), SimpleNamespace()

    def add_callback(self, callback: TrainerCallback) -> None:
        self.callbacks.append(callback)

    def train(self) -> None:
        for callback in self.callbacks:
            callback.on_init_end(self.args, self.state, None)


def test_it_attaches_the_template_and_writes_what_the_report_is_made_of(
    tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_session.TEMPLATE, template)
    monkeypatch.setenv(run_session.SETTINGS, "every=2")
    last = TrainerCallback()
    trainer = make_trainer(tmp_path / "out", callbacks=[Watching(), last], max_steps=3)
    own = KeepsItsOwn([last])
    add_to(own)
    own.train()
    for callbacks in (trainer.callback_handler.callbacks, own.callbacks):
        assert (type(callbacks[-3]), callbacks[-2].collect_freq_epoch) == (Watching, 2)
        assert callbacks[-1] is last, "a script may ask for its own by that"
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
