"""Arguments and state of a loop without a Trainer, from what a launcher has set."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import TrainerControl, TrainerState

from forgather_mem.loops.state import LoopControl, LoopState, default_arguments, new_state

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def _launched_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_nobody_launched_is_the_main_one() -> None:
    arguments = default_arguments()
    assert vars(arguments) == {"output_dir": None, "process_index": 0, "world_size": 1, "local_rank": 0}
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


def test_ranks_that_no_launcher_has_started_are_those_of_the_process_group() -> None:
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        arguments = default_arguments()
    finally:
        torch.distributed.destroy_process_group()
    assert (arguments.process_index, arguments.world_size) == (1, 2)


def test_ours_are_transformers_own_names_and_defaults() -> None:
    state, control = vars(TrainerState()), vars(TrainerControl())
    state["epoch"] = state["epoch"] or 0  # None in transformers 4
    assert {name: state[name] for name in vars(LoopState())} == vars(LoopState())
    assert vars(LoopControl()) == {name: value for name, value in control.items() if not name.startswith("_")}


def test_a_state_is_transformers_own_where_the_script_has_imported_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(new_state(None)) is TrainerState
    monkeypatch.delitem(sys.modules, "transformers.trainer_callback")
    assert type(new_state(None)) is LoopState
