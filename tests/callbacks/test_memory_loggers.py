"""What the loggers write in a real training, read back by others than ourselves where others can read it."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback

from forgather_mem.callbacks import JsonMemoryLogger, MemoryCallback, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.probes import TensorProbe
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from forgather_mem.units import MIB
from tests.callbacks.common import METRICS, captured
from tests.memory import status_bytes
from tests.reporting.report_fixtures import built
from tests.training import make_trainer

DEFAULT_NAMES = {
    "host/rss_bytes", "host/rss_peak_bytes", "host/anon_bytes", "gc/pause_s", "gc/pause_total_s", "gc/pause_max_s",
    "gc/collections", "step/time_s", "step/self_s",
}  # fmt: skip


class Resident(TrainerCallback):
    """The kernel's word for the resident size at each step's end."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at[state.global_step] = status_bytes("VmRSS")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(path: Path) -> dict[int, dict[str, float]]:
    """Step to values, of the records of steps."""
    return {line["step"]: line["values"] for line in lines(path) if line.get("event") == "step_end"}


def tensorboard(folder: Path) -> EventAccumulator:
    (file,) = folder.rglob("events.mem.tfevents*")
    return EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_json_lines_stand_in_the_runs_folder_with_the_default_names_and_true_sizes(tmp_path: Path) -> None:
    resident = Resident()
    make_trainer(tmp_path, [resident, JsonMemoryLogger(strict=True)]).train()
    (path,) = tmp_path.glob("forgather_mem/*/memory.rank0.jsonl")
    header = lines(path)[0]
    assert (header["type"], header["schema"], header["rank"]) == ("header", 1, 0)
    records = steps_of(path)
    assert sorted(records) == [1, 2, 3, 4, 5, 6]
    for step, values in records.items():
        assert set(values) >= DEFAULT_NAMES
        assert values["host/rss_bytes"] == pytest.approx(resident.at[step], abs=2 * MIB)
        assert values["host/rss_bytes"] >= values["host/anon_bytes"] > 0
        assert 0 < values["step/self_s"] < values["step/time_s"]
    assert records[1].keys() - DEFAULT_NAMES, "the rarer readings are due at the first step"


def test_a_path_and_a_period_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "mine.jsonl"
    logger = JsonMemoryLogger(path, every_steps=3, metrics=["gc"], strict=True)
    make_trainer(tmp_path / "out", [logger], max_steps=7).train()
    records = steps_of(path)
    assert sorted(records) == [3, 6]
    assert {name.split("/")[0] for values in records.values() for name in values} == {"gc", "step"}


@pytest.mark.slow
def test_every_group_of_metrics_gives_its_tags(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    settings["dataloader_num_workers"] = 1  # without any it has no card
    collecting = SimpleGarbageCollector(collect_freq_step=2)  # so few steps need no collection, and zeros have no card
    make_trainer(tmp_path, [TBMemoryLogger(metrics=METRICS, strict=True), collecting], **settings).train()
    tags = set(tensorboard(tmp_path).Tags()["scalars"])
    assert {tag.split("/")[0] for tag in tags} == {
        "mem_host", "mem_phase_host", "mem_gc", "mem_collect", "mem_workers", "mem_tensors", "mem_step",
    }  # fmt: skip
    assert {"mem_tensors/parameters_gib", "mem_tensors/gradients_gib", "mem_tensors/optimizer_gib"} <= tags


def phase_records(folder: Path) -> dict[tuple[str, int], set[str]]:
    """(event, step) to the phases told there."""
    (path,) = folder.glob("forgather_mem/*/memory.rank0.jsonl")
    return {
        (line["event"], line["step"]): {name.split("/")[2] for name in line["values"] if name.startswith("phase/")}
        for line in lines(path)
        if line["type"] == "sample"
    }


def test_what_ends_between_steps_is_told_there_and_the_last_of_it_too(tmp_path: Path) -> None:
    from forgather_mem.probes import PhaseProbe
    from forgather_mem.sinks import JsonlSink
    from forgather_mem.telemetry.triggers import AtEvent

    exact = PhaseProbe(host_mark=True, budget_frac=1)
    rules = [Rule(Every(steps=1), [exact]), Rule(AtEvent("evaluate", "save", "train_end"), [exact])]
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, [MemoryCallback(rules, [JsonlSink()], strict=True)], max_steps=2, **settings).train()
    of_a_step = {"data_peak_bytes", "forward_peak_bytes", "backward_peak_bytes", "optimizer_peak_bytes"}
    assert phase_records(tmp_path) == {
        ("step_end", 1): {"startup_peak_bytes", *of_a_step},
        ("step_end", 2): of_a_step,
        ("evaluate", 2): {"evaluate_peak_bytes"},
        ("save", 2): {"save_peak_bytes"},
    }


def test_the_loggers_hand_out_what_happens_between_steps() -> None:
    for logger in (TBMemoryLogger(metrics=["phases"]), JsonMemoryLogger(), MemoryCallback()):
        events = {event for rule in logger.rules for event in rule.when.events}
        assert {"evaluate", "save", "train_end"} <= events
    rules = TBMemoryLogger(metrics=["host", "device"]).rules
    assert "train_end" not in {event for rule in rules for event in rule.when.events}


def test_a_collection_at_the_end_of_the_last_epoch_is_counted(tmp_path: Path) -> None:
    logger, collector = TBMemoryLogger(strict=True), SimpleGarbageCollector(strict=True)
    make_trainer(tmp_path, [logger, collector], rows=16, max_steps=8).train()  # two epochs
    report = built(logger.summary)
    assert [row["calls"] for row in report["ledger"]] == [2]
    assert report["gc"]["collections"] >= 2
    (last,) = [point for point in tensorboard(tmp_path).Scalars("mem_gc/collections") if point.step == 8]
    assert last.value >= 1, "the step's own point stays; what came after it is in the report"


class Sleeps:
    """A reading that takes its time."""

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        time.sleep(0.005)
        return {"mine/count": 1.0}


@pytest.mark.slow
def test_our_own_time_is_what_we_took(tmp_path: Path) -> None:
    callback, capture = captured([Rule(Every(steps=1), [Sleeps()])], strict=True)
    make_trainer(tmp_path, [callback]).train()
    own = [value for _, value in capture.series("step/self_s")]
    assert all(value >= 0.005 for value in own)
    assert sum(own) < sum(value for _, value in capture.series("step/time_s"))
    report = built(callback.summary)
    ours = report["overhead"]
    assert 0 < ours["seconds"] - sum(own) < 1  # what it takes to close
    assert ours["step_s"] == pytest.approx(sum(own[2:]) / len(own[2:]))
    assert ours["once_s"] == pytest.approx(ours["seconds"] - len(own) * ours["step_s"])


def test_a_dear_reading_becomes_rarer_and_the_report_has_it(tmp_path: Path) -> None:
    probe = TensorProbe()  # walking the model takes some 0.2 ms, its budget is 0.1 % of the time
    callback, capture = captured([Rule(Every(steps=1, at="pre_optimizer_step"), [probe])], strict=True)
    make_trainer(tmp_path, [callback], max_steps=40, logging_strategy="no").train()
    assert 1 <= len(capture.series("tensors/parameters_bytes")) < 40
    report = built(callback.summary)
    (said,) = report["overhead"]["backed_off"]
    assert said["what"] == "sizes of tensors at pre_optimizer_step"
    assert re.match(r"sizes of tensors at pre_optimizer_step: read every [\d.]+ m?s instead", said["text"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE:UserWarning")
def test_a_resumed_training_begins_a_new_file_in_which_the_steps_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # transformers 4.46 reads no checkpoint without
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    settings = {"save_strategy": "steps", "save_steps": 4}
    make_trainer(tmp_path, [TBMemoryLogger(strict=True)], max_steps=4, **settings).train()
    resumed = make_trainer(tmp_path, [TBMemoryLogger(strict=True)], max_steps=7, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    files = sorted((tmp_path / "tb").iterdir(), key=lambda path: path.stat().st_mtime)
    steps = []
    for file in files:
        reader = EventAccumulator(str(file)).Reload()
        steps.append([point.step for point in reader.Scalars("mem_host/rss_gib")])
    assert steps == [[1, 2, 3, 4], [5, 6, 7]]


def test_a_folder_that_can_not_be_made_costs_records_and_the_report_says_how_many(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    logger = TBMemoryLogger(logging_dir=tmp_path / "file" / "tb", strict=True)
    trainer = make_trainer(tmp_path, [logger])
    trainer.train()
    assert trainer.state.global_step == 6
    (problem,) = built(logger.summary)["switched_off"]
    assert re.match(r"TensorBoard: \d+ of \d+ records dropped \(Not a directory", problem)


def test_a_path_that_is_no_name_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"path=5\): give a file's name"):
        JsonMemoryLogger(5)  # type: ignore[arg-type]
