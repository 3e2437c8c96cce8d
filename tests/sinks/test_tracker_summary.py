"""What is written into trackers' runs, with stand-ins for the trackers; tests/with_trackers has the real ones."""

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forgather_mem.callbacks import PeakMemory
from forgather_mem.sinks import TrackerSummarySink
from forgather_mem.telemetry.records import Finding
from tests.sinks.plain_run import PlainRun, begun
from tests.training import make_trainer


class Wandb(ModuleType):
    """As much of W&B as is used: the run that is open, and its summary."""

    __file__ = "wandb/__init__.py"

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: Any = SimpleNamespace(summary={})


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def finding(**report: Any) -> Finding:
    return Finding(kind="verdict", step=7, text="== the report ==", data={"report": report})


LEAK = {
    "run": {"end": "oom"},
    "leak": {"verdict": "leak", "bytes_per_step": 2.0**20},
    "peaks": [
        {"where": "host", "bytes": 2**30, "step": 1, "phase": "save"},
        {"where": "gpu0", "bytes": 2**33, "step": 5, "phase": "backward"},
        {"where": "gpu0", "bytes": 2**32, "step": 2, "phase": "forward"},
    ],
    "advice": [{"text": "per_device_train_batch_size=4"}],
}


def test_the_few_numbers_and_words_of_a_report(wandb: Wandb) -> None:
    sink = begun(TrackerSummarySink())
    sink.tell(finding(**LEAK))
    assert wandb.run.summary == {
        "mem_run_end": "oom",
        "mem_run_leak": "leak",
        "mem_run_leak_mib_per_step": 1.0,
        "mem_run_peak_gib": 8.0,
        "mem_run_peak_step": 5,
        "mem_run_peak_phase": "backward",
        "mem_run_advice": "per_device_train_batch_size=4",
        "mem_run_report": "== the report ==",
    }


def test_only_the_verdict_of_rank_0_in_the_process_that_trains(wandb: Wandb) -> None:
    sink = begun(TrackerSummarySink())
    sink.tell(Finding(kind="leak", step=7, text="something grows"))
    sink.end(PlainRun())
    sink.tell(finding(**LEAK))
    sink.begin(PlainRun(rank=1, world_size=2))
    sink.tell(finding(**LEAK))
    copy = pickle.loads(pickle.dumps(sink))
    copy.tell(finding(**LEAK))
    assert wandb.run.summary == {}


def test_a_run_that_ends_before_the_training_or_begins_after_it_is_found(wandb: Wandb) -> None:
    run, wandb.run = wandb.run, None
    sink = begun(TrackerSummarySink(prefix="m_"))
    wandb.run = run
    assert sink.log_values(3) == {}
    wandb.run = None
    sink.tell(finding(run={"end": "finished"}))
    assert run.summary["m_end"] == "finished"


def test_a_tracker_that_fails_ends_nothing_and_a_folder_of_its_name_is_none(
    wandb: Wandb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = ModuleType("mlflow")
    broken.__file__ = "mlflow/__init__.py"
    monkeypatch.setitem(sys.modules, "mlflow", broken)
    monkeypatch.setitem(sys.modules, "comet_ml", ModuleType("comet_ml"))  # what `import` makes of a folder ./comet_ml
    sink = begun(TrackerSummarySink())
    sink.tell(finding(**LEAK))
    assert wandb.run.summary["mem_run_end"] == "oom"
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == ["mlflow"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_training_tells_how_it_ended(tmp_path: Path, wandb: Wandb, fails: bool) -> None:
    peak = PeakMemory(also=["verdict"], strict=True)
    trainer = make_trainer(tmp_path, [peak], max_steps=2)
    if fails:
        trainer.training_step = lambda *_, **__: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.train()
    else:
        trainer.train()
    summary = wandb.run.summary
    assert summary["mem_run_end"] == ("exception" if fails else "finished")
    assert summary["mem_run_leak"] == "not enough data"
    assert summary["mem_run_report"].startswith("== forgather-mem ==")
    if not fails:
        highest = max(line.get("mem_peak_gib", 0.0) for line in trainer.state.log_history)
        assert summary["mem_run_peak_gib"] == pytest.approx(highest, rel=0.05)
