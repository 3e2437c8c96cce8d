"""Causes beside the batch: what has grown since the first step, a second model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.heap.failed_lines import FailedOperation
from forgather_mem.heap.failed_variables import HeldVariable
from forgather_mem.units import MIB

OPTIMIZER = FailureContext(
    where="host", phase="optimizer", step=9, used_bytes=900 * MIB, free_bytes=10 * MIB, requested_bytes=18 * MIB,
    parts={"optimizer": 64 * MIB, "parameters": 32 * MIB}, rows=32,
)  # fmt: skip
ADAM = RunSettings(
    is_trainers=False, trained_numbers=8 * MIB, trained_bytes=32 * MIB, optimizer_bytes=64 * MIB,
    state_bytes={"adamw": 64 * MIB, "adafactor": MIB},
)  # fmt: skip
DONE = [StepUse(step=step, rows=32, length=None, phases={"optimizer": 500 * MIB}) for step in range(1, 9)]


def told(failure: FailureContext, settings: RunSettings = ADAM, uses: list[StepUse] | None = None) -> list[str]:
    return [change.text for change in advise(failure, settings, uses or []).changes]


def test_after_steps_that_went_well_another_optimizer_is_no_answer() -> None:
    copies = HeldVariable(name="`Keeps.copies`", line=None, num_bytes=416 * MIB, collects=True, num_items=13)
    (change,) = advise(replace(OPTIMIZER, variables=[copies]), ADAM, DONE).changes
    assert change.text == "keep less in `Keeps.copies`: 416.0 MiB"
    assert change.note == "13 entries of 32.0 MiB, copies of the model's weights: at most 6"
    (text,) = told(OPTIMIZER, uses=DONE)
    assert text.startswith("less of what has grown since the first step")


@pytest.mark.parametrize(
    "failure",
    [
        replace(OPTIMIZER, frames=("step", "_init_group")),  # layers that were frozen until now
        replace(OPTIMIZER, parts={"optimizer": 90 * MIB}),  # a history that grows
    ],
)
def test_an_optimizer_whose_state_grows_is_still_the_cause(failure: FailureContext) -> None:
    assert "optim='sgd'" in told(failure, uses=DONE)
    assert "optim='sgd'" in told(OPTIMIZER), "the first step"


def test_of_a_list_that_is_not_full_it_is_told_what_the_full_one_takes() -> None:
    buffer = HeldVariable(
        name="`buffer`", line="train.py:8", num_bytes=200 * MIB, collects=True, num_items=800, most_items=100_000
    )
    change = advise(replace(OPTIMIZER, phase="backward", variables=[buffer]), ADAM, DONE).changes[0]
    assert (
        change.note == "800 entries of 256.0 KiB: at most 400; full, with 100,000, it would take 24.4 GiB; train.py:8"
    )


def test_a_second_model_that_keeps_its_graph_comes_before_the_batch() -> None:
    operation = FailedOperation(function="compute_loss", teacher="train.py:33")
    assert told(replace(OPTIMIZER, phase="forward", operation=operation)) == [
        "torch.no_grad() around what train.py:33 calls"
    ]
    assert not any("no_grad" in text for text in told(replace(OPTIMIZER, operation=operation)))
