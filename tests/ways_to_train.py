"""Two tiny trainings that a test runs alike: with a Trainer, and with a loop that has none."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from transformers import Trainer, TrainerCallback

from forgather_mem.loops.training_loop import TrainingLoop
from tests.training import make_trainer, tiny_model


def by_trainer(folder: Path, callbacks: list[TrainerCallback]) -> tuple[Trainer, Callable[[], object]]:
    """A trainer, and what trains it for three steps."""
    trainer = make_trainer(folder, callbacks, max_steps=3)
    return trainer, trainer.train


def by_loop(folder: Path, callbacks: list[TrainerCallback]) -> tuple[TrainingLoop, Callable[[], object]]:
    """The same with a loop that has no Trainer."""
    loop = TrainingLoop(tiny_model(), args=SimpleNamespace(output_dir=str(folder)), callbacks=callbacks)

    def train() -> None:
        with loop.train(), loop.epoch():
            for _ in range(3):
                with loop.step():
                    pass

    return loop, train
