"""20 pairs of Ctrl-C at random moments: the second comes while we close, or soon after."""

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem import load_callbacks
from forgather_mem.callbacks import MemoryCallback, TBMemoryLogger
from forgather_mem.engine.run_of import run_of
from forgather_mem.formats.ring import read_ring
from forgather_mem.loops.training_loop import TrainingLoop
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from tests.engine.test_closing import open_files
from tests.training import make_trainer, tiny_model

pytestmark = pytest.mark.soak


class Begun(TrainerCallback):
    """Tells in a file that two steps are done."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            self.path.touch()


def by_trainer(folder: Path, callbacks: list[TrainerCallback]) -> tuple[Any, Callable[[], object]]:
    trainer = make_trainer(folder, callbacks, max_steps=1_000_000)
    return trainer, trainer.train


def by_loop(folder: Path, callbacks: list[TrainerCallback]) -> tuple[Any, Callable[[], object]]:
    loop = TrainingLoop(tiny_model(), args=SimpleNamespace(output_dir=str(folder)), callbacks=callbacks)

    def train() -> None:
        with loop.train(), loop.epoch():
            while True:
                with loop.step():
                    time.sleep(0.005)

    return loop, train


def script(folder: Path, way: Any) -> None:
    """In a child: trains until two Ctrl-C have come, and tells what is left."""
    ours = [TBMemoryLogger(logging_dir=folder / "tb"), MemoryCallback([], [JsonlSink(), BlackBoxSink()])]
    callbacks = [*load_callbacks("callbacks/watch.yaml"), *ours, Begun(folder.parent / "begun")]
    owner, train = way(folder, callbacks)
    try:
        try:
            train()
        except KeyboardInterrupt:
            time.sleep(1)  # the second has not come yet
    except KeyboardInterrupt:
        pass
    run = run_of(owner.state)
    told = {"end": run.summary.facts.end, "closed": run.closed, "open": sorted(open_files(folder))}
    (folder.parent / "told").write_text(json.dumps(told))


def pressed_twice(folder: Path, way: Any, chance: random.Random) -> None:
    # A Ctrl-C that comes in a collection is swallowed by the interpreter, where somebody stands in `gc.callbacks`
    pid = os.fork()
    if not pid:
        try:
            script(folder, way)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    try:
        while not (folder.parent / "begun").exists():
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.5))
        os.kill(pid, signal.SIGINT)
        time.sleep(chance.choice([chance.uniform(0, 0.02), chance.uniform(0, 0.3)]))
        os.kill(pid, signal.SIGINT)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.01)
        if time.monotonic() < deadline_s:
            pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert not pid, "it trains on"


@pytest.mark.parametrize("way", [by_trainer, by_loop])
@pytest.mark.parametrize("seed", range(10))
def test_two_ctrl_c_at_random_moments_leave_the_end_the_report_and_no_open_file(
    tmp_path: Path, seed: int, way: Any
) -> None:
    torch.set_num_threads(1)  # PyTorch's threads don't come along when a process forks
    pressed_twice(tmp_path / "out", way, random.Random(f"{seed} {way.__name__}"))
    found = json.loads((tmp_path / "told").read_bytes())
    assert found == {"end": "interrupted", "closed": True, "open": []}
    (report,) = (tmp_path / "out").rglob("report.json")
    assert json.loads(report.read_bytes())["run"]["end"] == "interrupted"
    (ring,) = (tmp_path / "out").rglob("ring.rank0")
    assert read_ring(ring).state.end == "interrupted"
