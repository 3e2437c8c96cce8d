"""One short key in every line that a trainer logs, and so in every service that its integrations send lines to."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import PeakMemory
from forgather_mem.units import GIB, MIB
from tests.events import scalars
from tests.memory import spike, status_bytes
from tests.training import AtStep, make_trainer

KEY = "mem_peak_gib"


class Service(TrainerCallback):
    """What the integrations for W&B, MLflow, trackio, Comet, ... do: each takes the numbers of `on_log`'s logs."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.lines.append({key: value for key, value in logs.items() if isinstance(value, int | float)})


class Spikes(TrainerCallback):
    """So many MiB for a moment, in the middle of a step."""

    def __init__(self, mib: int, step: int) -> None:
        self.mib, self.step, self.highest_bytes = mib, step, 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.highest_bytes = status_bytes("VmRSS") + self.mib * MIB
            spike(self.mib)


class LogsMore(Trainer):
    """As the trainers of TRL do: metrics gathered over the steps are put into the line, prefixed by its first key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metrics: dict[str, list[float]] = defaultdict(list)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.metrics["rewards"].append(float(self.state.global_step))
        return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], *start_time: float | None) -> None:
        metrics = {key: sum(values) / len(values) for key, values in self.metrics.items() if values}
        if next(iter(logs)).startswith("eval_"):
            metrics = {f"eval_{key}": value for key, value in metrics.items()}
        super().log({**logs, **metrics}, *start_time)
        self.metrics.clear()


def test_every_line_has_the_key_in_every_integration_in_the_history_and_in_the_checkpoint(tmp_path: Path) -> None:
    service = Service()
    settings = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 6}
    trainer = make_trainer(tmp_path, [service, PeakMemory(strict=True)], report_to=["tensorboard"], **settings)
    trainer.train()
    kinds = [next(key for key in ("loss", "eval_loss", "train_loss") if key in line) for line in service.lines]
    assert kinds == ["loss", "eval_loss", "loss", "loss", "eval_loss", "train_loss"]
    keys = [KEY, f"eval_{KEY}", KEY, KEY, f"eval_{KEY}"]
    for line, key in zip(service.lines, [*keys, None], strict=True):
        assert [name for name in line if "mem_" in name] == ([key] if key else []), "nothing new in the last line"
        assert key is None or type(line[key]) is float
        assert key is None or 0.05 < line[key] < status_bytes("VmHWM") / GIB + 0.01
    for history in (trainer.state.log_history[:-1], json.loads(_state_of(tmp_path / "checkpoint-6"))["log_history"]):
        assert all(key in entry for key, entry in zip(keys, history, strict=True))
    points = scalars(tmp_path / "runs")
    assert [step for step, _ in points[f"train/{KEY}"]] == [2, 4, 6]
    assert [step for step, _ in points[f"eval/{KEY}"]] == [3, 6]


class SpikesInEvaluation(Trainer):
    """An evaluation has a peak of its own, which is no training's."""

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 4:
            spike(256)
        return super().prediction_step(*args, **kwargs)


@pytest.mark.fresh
def test_a_peak_of_an_evaluation_is_in_its_line_and_in_no_other(tmp_path: Path) -> None:
    service = Service()
    make_trainer(
        tmp_path, [service, PeakMemory(strict=True)], trainer_class=SpikesInEvaluation,
        eval_strategy="steps", eval_steps=2, max_steps=6, logging_steps=3,
    ).train()  # fmt: skip
    of_evaluations = [line[f"eval_{KEY}"] for line in service.lines if "eval_loss" in line]  # at steps 2, 4, 6
    of_steps = [line[KEY] for line in service.lines if "loss" in line]  # at steps 3, 6
    assert of_evaluations[1] - of_evaluations[0] > 0.2
    assert max(of_steps[1], of_evaluations[2]) < of_evaluations[1] - 0.2


def _state_of(checkpoint: Path) -> str:
    return (checkpoint / "trainer_state.json").read_text()


@pytest.mark.fresh
def test_a_line_has_the_peak_since_the_line_before(tmp_path: Path) -> None:
    service, spikes = Service(), Spikes(256, step=4)
    make_trainer(tmp_path, [service, PeakMemory(strict=True), spikes], max_steps=8).train()
    peaks = [line[KEY] * GIB for line in service.lines if "loss" in line]  # at steps 2, 4, 6, 8
    assert peaks[1] == pytest.approx(spikes.highest_bytes, abs=2 * MIB)
    for peak in (peaks[0], peaks[2], peaks[3]):
        assert peak < spikes.highest_bytes - 200 * MIB


def test_a_subclass_with_a_log_of_its_own_keeps_its_metrics_and_gets_the_key(tmp_path: Path) -> None:
    service = Service()
    trainer = make_trainer(
        tmp_path, [service, PeakMemory(strict=True)], trainer_class=LogsMore, eval_strategy="steps", eval_steps=6
    )
    trainer.train()
    losses = [line for line in service.lines if "loss" in line]
    assert [line["rewards"] for line in losses] == [0.5, 2.5, 4.5]
    assert all((f"eval_{KEY}" if "eval_loss" in line else KEY) in line for line in service.lines[:-1])
    assert "log" not in vars(trainer)


def test_the_dict_that_somebody_logs_stays_as_it_is(tmp_path: Path) -> None:
    logged = {"mine": 1.0}
    logs = AtStep(None, lambda: trainer.log(logged))
    trainer = make_trainer(tmp_path, [PeakMemory(strict=True), logs], max_steps=2)
    trainer.train()
    assert logged == {"mine": 1.0}
    assert [KEY in entry for entry in trainer.state.log_history if "mine" in entry] == [True, True]


def test_a_prefix_of_ones_own_stands_before_the_key(tmp_path: Path) -> None:
    service = Service()
    make_trainer(tmp_path, [service, PeakMemory(prefix="gpu/", strict=True)], max_steps=2).train()
    assert ["gpu/peak_gib" in line for line in service.lines] == [True, False], "nothing new in the last line"


@pytest.mark.slow
def test_on_request_a_line_has_headroom_phases_and_tensors(tmp_path: Path) -> None:
    service = Service()
    peak = PeakMemory(also=["headroom", "phases", "tensors"], strict=True)
    trainer = make_trainer(tmp_path, [service, peak], eval_strategy="steps", eval_steps=6)
    trainer.train()
    first, *_ = service.lines
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    assert first["mem_tensors_parameters_gib"] * GIB == pytest.approx(weights)
    assert first["mem_tensors_optimizer_gib"] * GIB >= 2 * weights
    assert first["mem_headroom_gib"] > 0
    for phase in ("data", "forward", "backward", "optimizer"):
        assert first[f"mem_phase_{phase}_gib"] == pytest.approx(first[KEY], rel=0.2)
    assert "mem_phase_evaluate_gib" not in first
    assert "mem_phase_evaluate_gib" in service.lines[-1], "with the line after the evaluation"


def test_what_else_it_may_add_is_named() -> None:
    with pytest.raises(ValueError, match=r"PeakMemory\(also=\['verdikt'\]\).*did you mean 'verdict'"):
        PeakMemory(also=["verdikt"])
