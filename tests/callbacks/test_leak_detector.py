"""A detector in real trainings: what leaks is named, what does not leak is left in peace."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem.callbacks import LeakDetector, ScheduledGarbageCollector
from tests.reporting.report_fixtures import built
from tests.training import fingerprint, make_trainer

LEAK_BYTES = 200_000


class Keeps(TrainerCallback):
    """Keeps a tensor a step."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.kept.append(torch.zeros(LEAK_BYTES // 4))


def leak_of(folder: Path, callbacks: list[Any], **arguments: Any) -> dict[str, Any]:
    detector = LeakDetector(strict=True)
    make_trainer(folder, [*callbacks, detector], max_steps=160, logging_steps=100, **arguments).train()
    assert detector.summary is not None
    leak: dict[str, Any] = built(detector.summary)["leak"]
    return leak


@pytest.mark.fresh
def test_a_tensor_kept_at_each_step_is_named_with_its_bytes_and_line(tmp_path: Path) -> None:
    leak = leak_of(tmp_path, [Keeps()])
    assert (leak["verdict"], leak["where"]) == ("leak", "tensors")
    assert leak["bytes_per_step"] == pytest.approx(LEAK_BYTES, rel=0.25)
    assert leak["bytes_per_step_low"] <= leak["bytes_per_step"] <= leak["bytes_per_step_high"]
    top = leak["suspects"][0]
    assert top["held_by"] == "Keeps.kept"
    assert top["source_line"] == "self.kept.append(torch.zeros(LEAK_BYTES // 4))"
    assert top["allocated_at"].startswith("test_leak_detector.py:")
    assert top["each"] == "Tensor [50000] float32 on cpu"
    assert top["count_per_step"] == pytest.approx(1, rel=0.2)
    assert top["whose"] == "user"
    assert leak["full_at_step"] > 160


@pytest.mark.fresh
def test_it_is_found_behind_a_frozen_heap_and_under_the_governor(tmp_path: Path) -> None:
    leak = leak_of(tmp_path, [Keeps(), ScheduledGarbageCollector(every_steps=5)])
    assert leak["verdict"] == "leak"
    assert leak["suspects"][0]["held_by"] == "Keeps.kept"
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


@pytest.mark.fresh
def test_a_training_without_a_leak_is_left_in_peace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    leak = leak_of(tmp_path, [])
    assert leak["verdict"] == "no leak"
    assert leak["suspects"] == []
    assert "grows" not in capfd.readouterr().err
    assert not tracemalloc.is_tracing()


@pytest.mark.fresh
def test_a_live_line_says_what_grows_and_another_who_holds_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    leak_of(tmp_path, [Keeps()])
    said = " ".join(capfd.readouterr().err.split())
    assert "host memory grows" in said
    assert "Looking closer for 10 steps" in said
    assert "held by Keeps.kept, +1 a step, made at test_leak_detector.py:" in said


def test_a_few_steps_are_not_judged(tmp_path: Path) -> None:
    detector = LeakDetector(strict=True)
    make_trainer(tmp_path, [detector]).train()
    assert detector.summary is not None
    assert built(detector.summary)["leak"]["verdict"] == "not enough data"


def test_a_training_is_bit_identical_with_and_without(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path / "plain", [Keeps()], max_steps=120)
    watched = make_trainer(tmp_path / "watched", [Keeps(), LeakDetector(every_steps=1, strict=True)], max_steps=120)
    plain.train()
    watched.train()
    assert fingerprint(watched) == fingerprint(plain)


def test_a_detector_can_be_pickled_and_switched_off(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(LeakDetector(every_steps=3, look_closer=False)))
    assert copy.every_steps == 3
    off = LeakDetector(enabled=False)
    make_trainer(tmp_path, [off]).train()
    assert off.summary is None


def test_a_wrong_parameter_is_named() -> None:
    with pytest.raises(ValueError, match=r"LeakDetector\(look_closer='yes'\): look_closer is true or false"):
        LeakDetector(look_closer="yes")  # type: ignore[arg-type]
