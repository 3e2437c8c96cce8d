"""What a checkpoint takes, and how many there are, compared with those of real trainings."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem.diagnose.alerts.checkpoint import SavePlan, checkpoint_bytes, save_plan
from forgather_mem.telemetry.records import Moment
from tests.training import make_trainer


class Looks(TrainerCallback):
    """Asks after the first step, and notes the checkpoints."""

    def __init__(self) -> None:
        self.plan: SavePlan | None = None
        self.sizes: tuple[int, int] | None = None
        self.saves: set[int] = set()  # their steps: transformers 4 writes the last one twice

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 1:
            moment = Moment("step_end", 1, None, args, state, control, objects, SimpleNamespace(world_size=1))
            self.plan = save_plan(moment)
            self.sizes = checkpoint_bytes(moment, self.plan) if self.plan is not None else None

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.saves.add(state.global_step)


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"save_strategy": "steps", "save_steps": 2, "max_steps": 7}, [2, 4, 6, 7]),
        ({"save_strategy": "steps", "save_steps": 0.5, "max_steps": 6}, [3, 6]),
        ({"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2}, [None, None]),
    ],
)
def test_the_plan_has_as_many_checkpoints_as_are_written(
    tmp_path: Path, arguments: dict[str, Any], steps: list[int | None]
) -> None:
    looks = Looks()
    trainer = make_trainer(tmp_path, [looks], **arguments)
    trainer.train()
    assert looks.plan is not None
    assert looks.plan.num_checkpoints == len(looks.saves) == len(steps)
    assert [looks.plan.when(number, trainer.state.max_steps)[0] for number in range(1, len(steps) + 1)] == steps


@pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # of transformers 4.57
def test_a_limit_keeps_one_more_while_it_writes_and_counts_those_that_are_there(tmp_path: Path) -> None:
    arguments = {"save_strategy": "steps", "save_steps": 1, "max_steps": 5, "save_total_limit": 2}
    looks = Looks()
    make_trainer(tmp_path, [looks], **arguments).train()
    assert looks.plan is not None
    assert looks.plan.most_at_once == 3
    again = Looks()
    make_trainer(tmp_path, [again], **arguments).train()
    assert again.plan is not None
    assert again.plan.most_at_once == 1


@pytest.mark.parametrize("only_model", [False, True])
def test_its_size_is_that_of_the_files(tmp_path: Path, only_model: bool) -> None:
    looks = Looks()
    trainer = make_trainer(tmp_path, [looks], save_strategy="steps", save_steps=6, save_only_model=only_model)
    trainer.model.resize_token_embeddings(20_000)
    trainer.train()
    names = ["model.safetensors"] + ["optimizer.pt"] * (not only_model)
    files = sum((tmp_path / "checkpoint-6" / name).stat().st_size for name in names)
    assert looks.sizes is not None
    assert sum(looks.sizes) == pytest.approx(files, rel=0.02)
    shutil.rmtree(tmp_path / "checkpoint-6")


def test_a_training_that_does_not_save_has_no_plan(tmp_path: Path) -> None:
    looks = Looks()
    make_trainer(tmp_path, [looks], save_strategy="no").train()
    assert looks.plan is None
