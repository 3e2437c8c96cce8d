"""Each of our callbacks alone, in each loop: the report of `watch()` or `attach()` has the steps and the verdict.

Under `run`: `tests/launch/test_loops.py`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem import TrainingLoop, attach, callbacks, watch
from tests.training import Bigrams, make_trainer

pytestmark = [pytest.mark.alone(forked=True), pytest.mark.usefixtures("own_folder")]

NAMES = (
    "ClearCacheCallback", "GradLogger", "InfoCallback", "JsonLogger", "JsonMemoryLogger", "MemoryAlert",
    "MemoryCallback", "OOMReporter", "PeakMemory", "ProgressCallback", "ScheduledGarbageCollector",
    "SimpleGarbageCollector", "TBLogger", "TBMemoryLogger",
)  # fmt: skip
STEPS = 4


def in_a_loop(callback: Any, steps: int = STEPS, kept: list[Any] | None = None) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainingLoop(model, optimizer, callbacks=[callback])
    with loop.train():
        for _ in range(steps):
            with loop.step():
                if kept is not None:
                    kept.append(torch.zeros(20_000))
                model(torch.randn(64, 8)).square().mean().backward()
                optimizer.step()


def made(name: str) -> Any:
    return getattr(callbacks, name)(*[1] * (name == "SimpleGarbageCollector"))


@pytest.mark.parametrize("name", NAMES)
def test_each_alone_is_in_the_report(name: str, tmp_path: Path) -> None:
    for trains in (
        in_a_loop,
        lambda callback: make_trainer(tmp_path / "out", [callback], model=Bigrams(), max_steps=STEPS).train(),
    ):
        with watch(quiet=True) as watching:
            trains(made(name))
        assert watching.report()["steps"] == STEPS
    trainer = make_trainer(tmp_path / "attached", [made(name)], model=Bigrams(), max_steps=STEPS)
    attached = attach(trainer)
    trainer.train()
    assert attached.report()["steps"] == STEPS


def test_the_leak_that_its_own_detector_has_found_is_told_by_watch(capfd: pytest.CaptureFixture[str]) -> None:
    with watch():
        in_a_loop(callbacks.LeakDetector(), 130, [])
    said = capfd.readouterr().err
    assert "LEAK   tensors on the host grow 78" in said
    assert " 130 steps in " in said
    assert "no optimizer" not in said
