"""Twenty trainings in one process, as in a search: nothing of ours is more after the last than after the first ones."""

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem import attach
from forgather_mem.callbacks import (
    GradLogger,
    JsonLogger,
    LeakDetector,
    MemoryCallback,
    OOMReporter,
    ScheduledGarbageCollector,
    TBLogger,
    TBMemoryLogger,
)
from forgather_mem.engine.run import Run
from forgather_mem.loops.training_loop import TrainingLoop
from tests.training import make_trainer, tiny_model

WARM_UP, MORE = 4, 16


def ours_in_modules() -> dict[str, int]:
    """How many things each container of our modules holds."""
    modules = {name: vars(module) for name, module in sys.modules.items() if name.startswith("forgather_mem")}
    return {
        f"{module}.{name}": len(value)
        for module, names in modules.items()
        for name, value in names.items()
        if isinstance(value, dict | list | set | weakref.WeakSet | weakref.WeakKeyDictionary)
        and not name.startswith("__")
    }


def counts() -> dict[str, Any]:
    gc.collect()
    return {
        "atexit": atexit._ncallbacks(),  # type: ignore[attr-defined]
        "gc.callbacks": len(gc.callbacks),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "log handlers": len(logging.getLogger().handlers) + len(logging._handlerList),  # type: ignore[attr-defined]
        "meta path": len(sys.meta_path),
        "runs": sum(type(thing) is Run for thing in gc.get_objects()),
        "modules": ours_in_modules(),
    }


def train_plainly(folder: Path, *, fails: bool, collects: bool) -> None:
    callbacks: list[Any] = [MemoryCallback(), LeakDetector(), OOMReporter(), TBMemoryLogger(), JsonLogger(), TBLogger()]
    callbacks += [GradLogger()] + [ScheduledGarbageCollector(every_steps=2)] * collects
    loop = TrainingLoop(tiny_model(), args=SimpleNamespace(output_dir=str(folder)), callbacks=callbacks)
    try:
        with loop.train(), loop.epoch(), loop.step():
            if fails:
                raise ValueError("of the user")
    except ValueError:
        pass


def test_nothing_grows_with_the_number_of_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_fork: list[Mapping[str, Any]] = []
    register = os.register_at_fork
    monkeypatch.setattr(os, "register_at_fork", lambda **calls: (at_fork.append(calls), register(**calls)))
    trainer = make_trainer(tmp_path / "trainer", [OOMReporter()], max_steps=1)
    watching = attach(trainer)
    before: dict[str, Any] = {}
    for number in range(WARM_UP + MORE):
        if number == WARM_UP:
            before = {**counts(), "forks": len(at_fork)}
        train_plainly(tmp_path / f"loop {number}", fails=number % 2 == 1, collects=number % 10 == 0)
        if number % 8 == 0:
            trainer.train()
        if number % 16 == 0:
            attach(make_trainer(tmp_path / f"trainer {number}", max_steps=1)).detach()
    assert watching.report()["steps"] == 1
    assert {**counts(), "forks": len(at_fork)} == before
