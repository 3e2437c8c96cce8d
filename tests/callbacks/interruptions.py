"""Trainings that end at a random moment in a random way, and what they must leave as it was."""

import contextlib
import gc
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import ClearCacheCallback, ScheduledGarbageCollector, TBMemoryLogger
from tests.training import make_trainer

STEPS = 4
EVENTS = ("epoch_begin", "step_begin", "pre_optimizer_step", "optimizer_step", "step_end", "evaluate", "epoch_end")
WAYS = ("no interruption", "error in an event", "Ctrl-C in an event", "out of memory", "exit in an event")


class Interrupted(TrainerCallback):
    """Raises at an event of a step."""

    def __init__(self, event: str, step: int, error: BaseException) -> None:
        def interrupt(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step >= step:
                raise error

        setattr(self, f"on_{event}", interrupt)


class RunsOutOfMemory(Trainer):
    """The CPU's allocator really refuses, in the forward pass of a step."""

    at_step = 0

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step >= self.at_step:
            torch.empty(2**60, dtype=torch.uint8)
        return super().compute_loss(*args, **kwargs)


class TimeIsUp(KeyboardInterrupt):
    """What the timer raises, wherever the interpreter is."""


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All that a callback of ours changes for the time of a training."""
    owners = (trainer, trainer.callback_handler, trainer.accelerator)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "enabled": gc.isenabled(),
        "thresholds": gc.get_threshold(),
        "frozen": gc.get_freeze_count(),
        "gc.callbacks": tuple(map(id, gc.callbacks)),
        "methods": {
            (type(owner).__name__, name) for owner in owners for name, value in vars(owner).items() if callable(value)
        },
        "hooks": sum(len(getattr(module, hook)) for module in trainer.model.modules() for hook in hooks),
    }


def assert_restored_after_interruption(seed: int, folder: Path, *, after_s: float | None = None) -> None:
    """A training with our callbacks ends in a way that the seed gives, or `after_s` seconds after its beginning."""
    chance = random.Random(seed)
    way = WAYS[seed % len(WAYS)]
    ours = [ScheduledGarbageCollector(every_steps=2), ClearCacheCallback("step", 2, trim_host=True, adaptive=True)]
    if seed % 3 == 0:
        ours.append(TBMemoryLogger(metrics=["host", "phases", "gc"], logging_dir=folder / "page"))
    step, event = chance.randint(0, STEPS - 1), chance.choice(EVENTS)
    if event in ("epoch_begin", "evaluate"):
        step = min(step, 2 if event == "evaluate" else 0)
    given = ours if chance.random() < 0.5 else []
    trainer_class = RunsOutOfMemory if way == "out of memory" and after_s is None else Trainer
    trainer = make_trainer(
        folder, given, trainer_class=trainer_class, max_steps=STEPS, eval_strategy="steps", eval_steps=2
    )
    before = state_of(trainer)
    if not given:
        for callback in ours:
            trainer.add_callback(callback)
    RunsOutOfMemory.at_step = step
    errors = {
        "error in an event": ValueError("stop"),
        "Ctrl-C in an event": KeyboardInterrupt(),
        "exit in an event": SystemExit(3),
    }
    if way in errors and after_s is None:
        trainer.add_callback(Interrupted(event, step, errors[way]))
    raised: BaseException | None = None
    try:
        with timer(after_s) if after_s is not None else contextlib.nullcontext():
            trainer.train()
    except (ValueError, KeyboardInterrupt, SystemExit, RuntimeError) as error:
        raised = error
    if after_s is None:
        expected = {"no interruption": type(None), "out of memory": RuntimeError} | {
            w: type(e) for w, e in errors.items()
        }
        assert type(raised) is expected[way], (way, raised)
    assert state_of(trainer) == before, (seed, way, event, step, after_s, raised)


@contextlib.contextmanager
def timer(after_s: float) -> Iterator[None]:
    """Raises `TimeIsUp` in the main thread after so many seconds, if the body is not over by then."""

    def up(signum: int, frame: object) -> None:
        raise TimeIsUp

    earlier = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
