"""A state of a watched trainer holds what it holds without us, for whoever reads its attributes."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback, TrainerState

from forgather_mem import attach
from forgather_mem.engine.run_of import RUNS, run_of
from tests.training import make_trainer


class Reads(TrainerCallback):
    """Does with a state what scripts do."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.told.append((sorted(vars(state)), TrainerState(**vars(state)) == state, len(json.dumps(vars(state)))))

    on_train_end = on_step_end


def test_the_attributes_of_a_state_are_those_without_us(tmp_path: Path) -> None:
    told = {}
    for watched in (False, True):
        reads = Reads()
        trainer = make_trainer(tmp_path / str(watched), [reads], max_steps=2, logging_strategy="no")
        if watched:
            attach(trainer)
        trainer.train()
        reads.on_train_end(trainer.args, trainer.state, trainer.control)
        told[watched] = [(names, same) for names, same, _ in reads.told]
    assert told[True] == told[False]
    assert len(told[True]) == 4


@pytest.mark.parametrize("ends", [True, False])
def test_a_state_and_its_run_are_freed_together(tmp_path: Path, ends: bool) -> None:
    trainer = make_trainer(tmp_path, max_steps=2, logging_strategy="no")
    handle = attach(trainer)

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("of the user")

    if not ends:
        trainer.training_step = fails
        with pytest.raises(ValueError, match="of the user"):
            trainer.train()
    else:
        trainer.train()
    alive = weakref.ref(trainer.state)
    known = len(RUNS._known)
    had_a_run = run_of(trainer.state) is not None
    del trainer, handle
    gc.collect()
    assert alive() is None
    assert len(RUNS._known) == known - had_a_run
