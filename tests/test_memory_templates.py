"""The templates of memory monitoring: two switches, and what a training with them prints and writes."""

import re
from pathlib import Path
from typing import Any

import pytest

from forgather_mem import ConfigEnvironment, load_callbacks
from forgather_mem.callbacks import MemoryCallback, TBMemoryLogger
from forgather_mem.cli.options import parse_settings
from forgather_mem.trackers import EpochMemoryMonitor
from tests.events import event_folders, scalars
from tests.training import make_trainer

MONITORED = "trainers/with_memory.yaml"
DEBUG, PRODUCTION = "callbacks/memory_debug.yaml", "callbacks/memory_production.yaml"


def monitor_of(template: str, **variables: Any) -> EpochMemoryMonitor:
    return ConfigEnvironment().load(template, **variables).construct("memory_monitor")


@pytest.mark.parametrize(
    "templates",
    [
        ["callbacks/memory.yaml"],
        ["callbacks/memory.yaml", "callbacks/gc_governor.yaml", "callbacks/watch.yaml"],
        [DEBUG, "callbacks/gc_governor.yaml", "callbacks/memory_and_loggers.yaml"],
    ],
)
def test_whatever_stands_together_a_tag_has_one_point_at_a_step(tmp_path: Path, templates: list[str]) -> None:
    callbacks = [callback for template in templates for callback in load_callbacks(template)]
    often = {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    make_trainer(tmp_path, callbacks, **often).train()
    points: dict[str, list[int]] = {}
    for folder in event_folders(tmp_path):
        for tag, found in scalars(folder).items():
            points.setdefault(f"{folder} {tag}", []).extend(step for step, _ in found)
    assert any("mem_gc/collections" in tag for tag in points)
    assert {tag: steps for tag, steps in points.items() if len(set(steps)) < len(steps)} == {}


# ---- the switches ----


def test_monitoring_is_on_for_five_batches_unless_told_otherwise() -> None:
    (callback,) = load_callbacks(MONITORED)
    assert type(callback) is MemoryCallback
    assert type(callback.monitor) is EpochMemoryMonitor
    assert (callback.monitor.enabled, callback.monitor.verbose_batches) == (True, 5)


@pytest.mark.parametrize("template", [MONITORED, DEBUG, PRODUCTION])
def test_one_switch_turns_monitoring_on_and_off_in_every_template(template: str) -> None:
    for enabled in (True, False):
        variables = {"trainer_params": {"enable_memory_monitoring": enabled, "memory_monitor_batches": 2}}
        callbacks = load_callbacks(template, **variables)
        assert [type(callback) for callback in callbacks].count(MemoryCallback) == int(enabled)
        monitor = monitor_of(template, **variables)
        assert (monitor.enabled, monitor.verbose_batches) == (enabled, 2)


def test_switched_off_there_is_no_callback_at_all() -> None:
    assert load_callbacks(MONITORED, trainer_params={"enable_memory_monitoring": False}) == []


@pytest.mark.parametrize(
    ("template", "enabled"), [(MONITORED, True), (DEBUG, True), (PRODUCTION, False)]
)  # fmt: skip
def test_one_of_the_two_switches_may_be_left_out(template: str, enabled: bool) -> None:
    monitor = monitor_of(template, trainer_params={"memory_monitor_batches": 9})
    assert (monitor.enabled, monitor.verbose_batches) == (enabled, 9)
    assert monitor_of(template, trainer_params={"enable_memory_monitoring": not enabled}).enabled is not enabled


def test_the_switches_can_be_set_on_the_command_line() -> None:
    variables = parse_settings(
        ["trainer_params.enable_memory_monitoring=true", "trainer_params.memory_monitor_batches=3"]
    )
    monitor = monitor_of(PRODUCTION, **variables)
    assert (monitor.enabled, monitor.verbose_batches) == (True, 3)


def test_both_targets_of_one_construction_share_the_monitor() -> None:
    config = ConfigEnvironment().load(MONITORED)
    (callback,) = config["trainer_callbacks"]
    assert callback.monitor is config["memory_monitor"]


def test_memory_and_loggers_is_the_memory_template_on_top_of_the_loggers() -> None:
    variables = {"collect_freq_epoch": 3, "empty_cache_at": "step", "empty_cache_freq": 7, "every_steps": 5}
    both = load_callbacks("callbacks/memory_and_loggers.yaml", **variables)
    loggers = load_callbacks("callbacks/loggers.yaml")
    memory = load_callbacks("callbacks/memory.yaml", **variables)
    assert [type(callback) for callback in both] == [type(callback) for callback in (*loggers, *memory)]
    plain = (int, str, bool, type(None))
    for callback, other in zip(both[len(loggers) :], memory, strict=True):
        settings = {name: value for name, value in vars(other).items() if isinstance(value, plain)}
        assert {name: vars(callback)[name] for name in settings} == settings
        assert [str(rule.when) for rule in callback.rules] == [str(rule.when) for rule in other.rules]


# ---- in a training ----


def test_a_training_prints_the_first_batches_and_the_end_of_each_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = load_callbacks(MONITORED, trainer_params={"memory_monitor_batches": 2})
    make_trainer(tmp_path, callbacks, rows=16, max_steps=8).train()  # 4 steps an epoch
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert lines[0] == "Memory monitoring enabled (verbose for first 2 batches)"
    epoch = [
        r"Batch 0: CPU \d+\.\d MB, loss=\d\.\d{6}",
        r"Batch 1: CPU \d+\.\d MB, loss=\d\.\d{6}",
        r"Epoch end: CPU \d+\.\d MB, peak \d+\.\d MB",
    ]
    shown = [line for line in lines[1:] if line.startswith(("Batch", "Epoch"))]
    assert len(shown) == 6
    for line, pattern in zip(shown, epoch * 2, strict=True):
        assert re.fullmatch(pattern, line)


def test_debugging_writes_each_step_with_phases_and_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, load_callbacks(DEBUG, logging_dir=str(tmp_path / "tb"))).train()
    tags = {tag: [step for step, _ in points] for tag, points in scalars(tmp_path / "tb").items()}
    assert tags["mem_host/rss_gib"] == [1, 2, 3, 4, 5, 6]
    assert tags["mem_tensors/parameters_gib"][0] == 1, "then as often as it stays cheap"
    assert any(tag.startswith("mem_phase_host/") for tag in tags)
    assert "Batch 0: " in capsys.readouterr().out


def test_production_prints_nothing_and_writes_rarely(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (callback,) = load_callbacks(PRODUCTION, logging_dir=str(tmp_path / "tb"))
    assert type(callback) is TBMemoryLogger
    assert callback.rules[0].when.every_steps == 100
    assert monitor_of(PRODUCTION).enabled is False
    rare = load_callbacks(PRODUCTION, logging_dir=str(tmp_path / "tb"), every_steps=3)
    make_trainer(tmp_path, rare, logging_strategy="no").train()
    assert [step for step, _ in scalars(tmp_path / "tb")["mem_host/rss_gib"]] == [3, 6]
    assert "mem" not in capfd.readouterr().out.lower()
