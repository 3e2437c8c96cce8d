"""What the link does to a trainer: which methods it wraps, what it learns by them, and what it puts back."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import MemoryCallback, SimpleGarbageCollector
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.phase_notes import PhaseNotes
from tests.programs import no_collections
from tests.training import AtStep, make_trainer


def test_the_training_loop_is_unwrapped_when_ours_are_gone(tmp_path: Path) -> None:
    class OwnLoop(Trainer):
        def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
            return super()._inner_training_loop(*args, **kwargs)

    trainer = make_trainer(tmp_path, [SimpleGarbageCollector()], trainer_class=OwnLoop)
    assert "_inner_training_loop" in vars(trainer)
    trainer.remove_callback(SimpleGarbageCollector)
    trainer.train()
    assert "_inner_training_loop" not in vars(trainer)


@pytest.mark.slow
def test_a_trainer_is_freed_without_a_collection_as_soon_as_without_us(tmp_path: Path) -> None:
    import weakref

    def alive_after(callbacks: list[TrainerCallback]) -> bool:
        trainer = make_trainer(tmp_path, callbacks)
        trainer.train()
        reference = weakref.ref(trainer)
        with no_collections():
            del trainer
            return reference() is not None

    assert alive_after([SimpleGarbageCollector(), MemoryCallback()]) == alive_after([])


def test_the_names_that_the_link_wraps_exist(tmp_path: Path) -> None:
    from forgather_mem.callbacks.trainer.link import PHASE_OF_METHOD

    trainer = make_trainer(tmp_path)
    for name in (*PHASE_OF_METHOD, "log", "train"):
        assert callable(getattr(Trainer, name)), name
    assert callable(trainer.accelerator.backward)
    assert callable(trainer.callback_handler.on_pre_optimizer_step)
    assert callable(trainer.callback_handler.on_optimizer_step)


def test_the_phases_of_a_step_come_in_their_order(tmp_path: Path) -> None:
    class Notes(PhaseNotes):
        def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
            self.seen.append(f"step {moment.step}")
            return {}

    notes = Notes()

    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    callback = MemoryCallback([Rule(Every(steps=1), [notes])])
    make_trainer(tmp_path, [callback], max_steps=2, gradient_accumulation_steps=2, **settings).train()
    micro = ["forward", "backward"] * 2
    assert notes.seen == [
        "startup",
        *["data", *micro, "optimizer", "step 1"],
        *["data", *micro, "optimizer", "step 2", "evaluate", "save"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_after_which_another_callback_fails_is_done(tmp_path: Path, error: type[BaseException]) -> None:
    ours = MemoryCallback()
    with pytest.raises(error):
        make_trainer(tmp_path, [AtStep(2, error()), ours]).train()
    assert ours.summary.steps == 2
