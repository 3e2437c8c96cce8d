"""Whose run a trainer's state is: the state's own, of as many trainings as there are."""

import copy
import gc
import weakref
from types import SimpleNamespace

from transformers import TrainerState

from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.engine.run_of import RUNS, run_of


def test_a_state_has_its_own_run_and_a_copy_has_none() -> None:
    first, second = TrainerState(), TrainerState()
    runs = Run(RunFacts()), Run(RunFacts())
    assert run_of(first) is None
    for state, run in zip((first, second), runs, strict=True):
        RUNS.give(state, run)
    assert (run_of(first), run_of(second)) == runs, "states that are equal are not the same"
    assert run_of(copy.deepcopy(first)) is None
    assert "run" not in " ".join(vars(first)), "whoever copies its attributes does not meet ours"
    RUNS.give(first, runs[1])
    assert run_of(first) is runs[1]


def test_a_run_goes_with_its_state() -> None:
    state, run = TrainerState(), Run(RunFacts())
    watched = weakref.ref(run.summary)
    RUNS.give(state, run)
    del run
    assert watched() is not None
    del state
    gc.collect()
    assert watched() is None


def test_a_state_that_can_not_be_referenced_weakly_has_a_run_too() -> None:
    state, run = SimpleNamespace(global_step=0), Run(RunFacts())
    RUNS.give(state, run)
    assert run_of(state) is run
    assert run_of(SimpleNamespace(global_step=0)) is None
    assert run_of(None) is None
