"""Arguments and state of a loop without a Trainer, from what a launcher has set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import DefaultFlowCallback

from forgather_mem.loops.state import NoFlow, default_arguments, new_state

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def _launched_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_nobody_launched_is_the_main_one() -> None:
    arguments = default_arguments()
    assert (arguments.output_dir, arguments.process_index, arguments.world_size, arguments.local_rank) == (
        None,
        0,
        1,
        0,
    )
    for args in (None, arguments, SimpleNamespace()):
        state = new_state(args)
        assert (state.is_world_process_zero, state.is_local_process_zero) == (True, True)


def test_the_arguments_own_ranks_come_before_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(LAUNCHED, ("5", "1", "8"), strict=True):
        monkeypatch.setenv(name, value)
    launched = default_arguments()
    assert (launched.process_index, launched.world_size, launched.local_rank) == (5, 8, 1)
    assert not new_state(None).is_world_process_zero
    assert not new_state(None).is_local_process_zero
    own = new_state(SimpleNamespace(process_index=0, local_process_index=0))
    assert (own.is_world_process_zero, own.is_local_process_zero) == (True, True)


def test_the_loop_decides_when_to_log_evaluate_and_save() -> None:
    """Where transformers' own flow would stop the training, ours leaves the control as it is."""
    args = SimpleNamespace(
        logging_strategy="steps", eval_strategy="steps", save_strategy="steps", logging_first_step=True, eval_delay=0,
        logging_steps=1, eval_steps=1, save_steps=1,
    )  # fmt: skip
    state = TrainerState(global_step=10, max_steps=10, logging_steps=1, eval_steps=1, save_steps=1)
    theirs, ours = TrainerControl(), TrainerControl()
    DefaultFlowCallback().on_step_end(args, state, theirs)
    assert theirs.should_training_stop
    NoFlow().on_step_end(args, state, ours)
    NoFlow().on_epoch_end(args, state, ours)
    assert ours == TrainerControl()
