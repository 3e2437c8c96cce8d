"""A process that trains without torch is looked at by time."""

import sys
import time
from pathlib import Path

import pytest
from transformers import TrainerCallback, TrainerState

from forgather_mem.loops import by_time
from tests.launch.commands import REPORT, RUN, python, run

GROWS = """
import io, sys, time
from forgather_mem.launch import short_runs
from forgather_mem.loops import by_time
short_runs.SHORT_S, by_time.Looks.EVERY_S = 0.0, 0.01  # as a longer script
import sklearn
sys.stderr = io.StringIO()

class Runner:
    def __init__(self):
        self.history = []

    def go(self, end_s=time.monotonic() + 60):
        while "held by" not in sys.stderr.getvalue() and time.monotonic() < end_s:
            self.history.append(bytearray(20_000))
            time.sleep(0.005)

Runner().go()
print("torch" in sys.modules, len(sys.modules["threading"].enumerate()))
"""


def test_what_grows_without_torch_has_its_holder_and_line(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").touch()
    (tmp_path / "grows.py").write_text(GROWS)
    result = run([*RUN, *python("grows.py")], tmp_path)
    assert (result.code, result.out) == (0, "False 1\n")
    report = " ".join(result.err.partition(REPORT)[2].split())
    assert report.startswith("grows.py == ")
    assert "held by Runner.history list" in report
    assert "added at grows.py:15" in report
    assert "each 0.01 s of this process counts as a step" in report


def test_what_a_look_takes_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    class Slow(TrainerCallback):
        def on_step_end(self, args: object, state: TrainerState, control: object, **objects: object) -> None:
            steps.append(state.global_step)
            time.sleep(0.5)  # as a walk of the heap does: the script stands still, and nothing of it can grow

    monkeypatch.setattr(by_time.Looks, "EVERY_S", 0.1)
    monkeypatch.delitem(sys.modules, "torch")
    looks = by_time.Looks(None, lambda: [Slow()])
    asked_s = time.monotonic()
    while len(steps) < 4:
        bool(looks)
    looks._close()
    took_s = time.monotonic() - asked_s
    assert steps[-1] <= 10 * (took_s - 4 * 0.5) + 1
