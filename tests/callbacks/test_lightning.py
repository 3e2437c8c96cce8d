"""Our callbacks in real Lightning."""

import csv
import gc
import io
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem.callbacks import (
    JsonLogger,
    MemoryCallback,
    OOMReporter,
    PeakMemory,
    ProgressCallback,
    ScheduledGarbageCollector,
    TBLogger,
    TBMemoryLogger,
)
from forgather_mem.reporting.run_dir import run_report
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.events import scalars
from tests.loops.test_training_loop import Order
from tests.phase_notes import PhaseNotes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="the lightning extra is not installed")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

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
        loss = self.layer(batch[0]).square().mean()
        self.log("rows", float(len(batch[0])))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


class Logs(TrainerCallback):
    """Keeps what is logged, by step, and what evaluations bring."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append((state.global_step, logs))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.evaluations.append(metrics)


def fit(
    folder: Path, callbacks: Any, /, validate: bool = False, line: Line | None = None, rows: Any = None, **options: Any
) -> Line:
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = rows or torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    settings["callbacks"] = [LightningCallbacks(callbacks)] if callbacks else []
    trainer = lightning.Trainer(
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, **{**settings, **options}
    )
    line = line or Line()
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
        *([*[("prediction_step", last)] * 4, ("log", last), ("evaluate", last)] if validate else []),
        ("epoch_end", last),
        ("train_end", last),
    ]


def test_accumulation_is_among_the_settings(tmp_path: Path) -> None:
    callback = MemoryCallback()
    fit(tmp_path, [callback], accumulate_grad_batches=2)
    assert run_report(tmp_path).run.settings["arguments.accumulate_grad_batches"] == "2"


@pytest.mark.slow
def test_the_loggers_get_losses_rates_and_metrics(tmp_path: Path) -> None:
    kept, progress = Logs(), io.StringIO()
    board, log = TBLogger(), JsonLogger(name="lightning")
    callbacks = [kept, board, log, ProgressCallback(use_tqdm=False, output_stream=progress)]
    fit(tmp_path, callbacks, validate=True, max_epochs=2, log_every_n_steps=3)
    assert [(step, sorted(logs)) for step, logs in kept.logs] == [
        (3, ["epoch", "learning_rate", "loss", "rows"]),
        (4, ["epoch", "val_loss"]),
        (6, ["epoch", "learning_rate", "loss", "rows"]),
        (8, ["epoch", "val_loss"]),
    ]
    assert kept.logs[0][1]["loss"] > 0
    assert kept.logs[0][1]["rows"] == 4.0
    assert [list(metrics) for metrics in kept.evaluations] == [["val_loss"]] * 2
    points = scalars(tmp_path)
    assert [step for step, _ in points["train-loss"]] == [3, 6]
    assert [step for step, _ in points["val_loss"]] == [4, 8]
    records = json.loads(log.path.read_text())
    assert [record["metrics"]["loss"] for record in records if "loss" in record["metrics"]] == [
        logs["loss"] for _, logs in kept.logs if "loss" in logs
    ]
    assert "step 3/-1" not in progress.getvalue()
    assert re.search(r"step 6 +epoch 1.50 +loss \d", progress.getvalue())


@pytest.mark.slow
def test_what_sinks_add_to_a_line_is_in_the_lines_of_lightnings_loggers(tmp_path: Path) -> None:
    kept, csv_logger = Logs(), CSVLogger(tmp_path, name="", version="", flush_logs_every_n_steps=1)
    peak = PeakMemory(also=["phases"], strict=True)
    fit(tmp_path, [kept, peak], validate=True, max_epochs=2, log_every_n_steps=3, logger=csv_logger)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    of_steps = [row for row in rows if "rows" in row]
    lines = dict(kept.logs)
    assert [int(row["step"]) for row in of_steps] == [2, 5], "of Lightning's own line, which counts from 0"
    for row, step in zip(of_steps, (3, 6), strict=True):
        ours = {name: value for name, value in lines[step].items() if name.startswith("mem_")}
        assert (
            {name for name in row if name.startswith("mem_")} == set(ours) >= {"mem_peak_gib", "mem_phase_forward_gib"}
        )
        for name, value in ours.items():
            assert float(row[name]) == pytest.approx(value)
    of_validation = [row for row in rows if "val_mem_peak_gib" in row]
    assert not any("mem_peak_gib" in row for row in of_validation)
    assert [int(row["step"]) for row in of_validation] == [4, 8]
    assert [int(row["step"]) for row in rows] == sorted(int(row["step"]) for row in rows)


@pytest.mark.usefixtures("nothing_frozen")
def test_our_callbacks_read_write_and_leave_nothing_behind(tmp_path: Path) -> None:
    capture = Capture()
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    rule = Rule(Every(steps=1), [lambda moment, sample: {"mine/epoch": moment.epoch}])
    fit(tmp_path, [MemoryCallback([rule], [capture]), TBMemoryLogger(), ScheduledGarbageCollector(every_steps=2)])
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before
    assert capture.series("mine/epoch") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert list(tmp_path.rglob("*tfevents*"))


@pytest.mark.usefixtures("nothing_frozen")
def test_an_exception_gives_everything_back(tmp_path: Path) -> None:
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    with pytest.raises(RuntimeError, match="in the step"):
        fit(tmp_path, [MemoryCallback(), ScheduledGarbageCollector(every_steps=1)], line=Line(2))
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before


class Greedy(Line):
    """Asks for too much in its own loss, in a large batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if len(batch) > 4:
            torch.empty(2**50)
        return self.layer(batch).square().mean()


@pytest.mark.slow
def test_a_step_that_never_calls_the_whole_module_has_its_batch_and_its_phase(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    rows = [torch.randn(2, 4), torch.randn(4, 4), torch.randn(32, 4)]
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        fit(tmp_path, [reporter], line=Greedy(), rows=torch.utils.data.DataLoader(rows, batch_size=None))
    oom = reporter.summary.oom
    assert (oom["phase"], oom["step"], oom["batch"]) == ("forward", 3, {"rows": 32, "length": None})
    assert "the largest batch so far, 32 rows; until then at most 4" in (oom["why_now"] or "")


class Greedier(Line):
    """Asks for too much once its batch has ended."""

    def on_train_batch_end(self, *_: object) -> None:
        torch.empty(2**50)


def test_what_runs_between_a_step_and_the_next_fetch_is_no_data(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        fit(tmp_path, [reporter], line=Greedier())
    assert (reporter.summary.oom["phase"], reporter.summary.oom["step"]) == ("other", 1)


@pytest.mark.slow
def test_training_is_bit_identical(tmp_path: Path) -> None:
    alone = fit(tmp_path, [])
    watched = fit(tmp_path, [MemoryCallback(), TBMemoryLogger()])
    assert torch.equal(alone.layer.weight, watched.layer.weight)


class SeesBatches(PhaseNotes):
    """Notes the rows of each micro-batch instead."""

    def begin(self, run: Any) -> None:
        run.phases.on_batch.append(lambda arguments, keywords: self.seen.append(len(arguments[0][0])))


def test_batches_are_seen_before_their_forward_pass(tmp_path: Path) -> None:
    sees = SeesBatches()
    fit(tmp_path, [MemoryCallback([Rule(Every(steps=1), [sees])])])
    assert len(sees.seen) >= 4, "one for each step"
    assert set(sees.seen) == {4}


# ---- the phases of a checkpoint and of the sanity check ----


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
