"""The log of real trainings as JSON, compared with the Trainer's log history."""

import json
import logging
import os
import pickle
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.callbacks import JsonLogger, TBLogger
from tests.events import event_folders
from tests.forked import Forked
from tests.sinks.faults import small_disk
from tests.training import AtStep, fingerprint, make_trainer

ROOT = Path(__file__).parents[3]
SAVES = {"save_strategy": "steps", "save_steps": 3}


def logs_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("trainer_logs.json"))


def records_in(folder: Path) -> list[dict[str, Any]]:
    (path,) = logs_in(folder)
    return json.loads(path.read_bytes())


def test_every_log_line_and_evaluation_is_a_record_of_the_documents_form(tmp_path: Path) -> None:
    info = {"name": "My Experiment", "config": {"layers": [1, 2], "path": Path("a")}}
    made = make_trainer(tmp_path, [JsonLogger(**info)], eval_strategy="steps", eval_steps=3, logging_steps=1, **SAVES)
    made.train()
    records = records_in(tmp_path)
    assert [record["event"] for record in records if record["event"] not in ("on_log", "on_evaluate", "on_save")] == [
        "on_train_begin", "on_epoch_end", "on_train_end",
    ]  # fmt: skip
    logged = [{**record["metrics"], "step": record["global_step"]} for record in records if record["event"] == "on_log"]
    assert logged == made.state.log_history
    evaluated = [record for record in records if record["event"] == "on_evaluate"]
    assert [record["global_step"] for record in evaluated] == [3, 6]
    assert evaluated[0]["metrics"]["eval_loss"] > 0
    assert [record["global_step"] for record in records if record["event"] == "on_save"] == [3, 6]
    for record in records[1:]:
        assert list(record) == ["event", "timestamp", "global_step", "epoch", "metrics", "meta"]
        assert record["meta"] == {"name": "My Experiment", "config": {"layers": [1, 2], "path": "a"}}
        assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(record["timestamp"]) < timedelta(minutes=10)
    assert records[0]["arguments"]["max_steps"] == 6
    assert records[0]["model"]["hidden_size"] == 16


def test_it_stands_beside_the_curves_and_goes_on_with_an_evaluation_after_the_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [JsonLogger(), TBLogger()])
    trainer.train()
    trainer.evaluate()
    assert [path.parent for path in logs_in(tmp_path)] == event_folders(tmp_path)
    assert [record["event"] for record in records_in(tmp_path)][-3:] == ["on_train_end", "on_log", "on_evaluate"]


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD:UserWarning")
def test_a_training_that_resumes_goes_on_in_the_file_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # transformers 4.46 reads its checkpoints no other way
    with pytest.raises(RuntimeError, match="stop"):
        make_trainer(tmp_path, [JsonLogger(name="x"), AtStep(5, RuntimeError("stop"))], **SAVES).train()
    (path,) = logs_in(tmp_path)
    path.parent.rename(path.parent.with_name("an-earlier-time"))  # as the first run's folder is called by its time
    trainer = make_trainer(tmp_path, [JsonLogger(name="x")], **SAVES)
    trainer.train(resume_from_checkpoint=True)
    trainer.evaluate()
    records = records_in(tmp_path)
    assert [record["global_step"] for record in records if record["event"] == "on_train_begin"] == [0, 3]
    assert [record["global_step"] for record in records if "loss" in record["metrics"]] == [2, 4, 4, 6]
    assert records[-1]["event"] == "on_evaluate"


def test_trainings_that_do_not_resume_have_files_of_their_own(tmp_path: Path) -> None:
    callback = JsonLogger(name="x")
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback]).train()
        assert callback.path == logs_in(tmp_path / name)[0]
        assert records_in(tmp_path / name)[-1]["event"] == "on_train_end"
    copy = pickle.loads(pickle.dumps(callback))
    make_trainer(tmp_path / "c", [copy]).train()
    assert records_in(tmp_path / "c")[0]["meta"] == {"name": "x"}


@pytest.mark.parametrize("way", ["argument", "environment", "arguments of the trainer"])
def test_the_folder_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    callback = JsonLogger(logging_dir=tmp_path / "here" if way == "argument" else None)
    if way == "environment":
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "here"))
    trainer = make_trainer(tmp_path / "out", [callback], max_steps=1)
    if way == "arguments of the trainer":
        trainer.args.logging_dir = str(tmp_path / "here")
    trainer.train()
    assert logs_in(tmp_path) == [tmp_path / "here" / "trainer_logs.json"]


def test_a_remote_folder_of_curves_leaves_the_log_at_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "s3://bucket/run")
    make_trainer(tmp_path, [JsonLogger()], max_steps=1).train()
    assert logs_in(tmp_path) == [tmp_path / "trainer_logs.json"]
    assert len([record for record in caplog.records if "is remote" in record.message]) == 1


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = []
    with small_disk(tmp_path / "disk", "128k") as disk:
        for name in ("without", "with"):
            callbacks = [JsonLogger(logging_dir=disk / "logs", text="x" * 4_000)] if name == "with" else []
            trainer = make_trainer(tmp_path / name, callbacks, logging_steps=1, max_steps=40)
            with caplog.at_level(logging.WARNING):
                trainer.train()
            seen.append(fingerprint(trainer))
        records = records_in(disk)
    assert seen[0] == seen[1]
    assert 5 < len(records) < 40
    assert "No space left on device" in caplog.text


KILLED = """
import signal, sys
from pathlib import Path
from forgather_mem.callbacks import JsonLogger
from tests.training import AtStep, make_trainer
killed = AtStep(5, lambda: signal.raise_signal(signal.SIGKILL))
make_trainer(Path(sys.argv[1]), [JsonLogger(name="x"), killed], logging_steps=1).train()
"""


@pytest.mark.fresh
def test_a_training_that_is_killed_leaves_valid_json(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KILLED)
    code, _, said = Forked(tmp_path / "script.py", [str(tmp_path)], tmp_path, os.environ).wait()
    assert code == -signal.SIGKILL, said
    assert [record["global_step"] for record in records_in(tmp_path)] == [0, 1, 2, 3, 4]
