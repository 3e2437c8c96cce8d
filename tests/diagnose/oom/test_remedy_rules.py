"""The causes other than the batch, and in which order they are told."""

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import CallbackFailure, FailedOperation
from forgather_mem.units import MIB
from tests.diagnose.oom.failures import failure_of, replace

PAIRS = FailedOperation(operands=(("q", (5000, 64)), ("a", (4000, 64))))
FAILURE = failure_of(
    where="host",
    phase="evaluate",
    step=80,
    used_bytes=300 * MIB,
    free_bytes=200 * MIB,
    requested_bytes=190 * MIB,
    line="train.py:45",
    operation=PAIRS,
)


def held(name: str, mib: int, **more: object) -> Holding:
    one = Holding(name=name, num_bytes=mib * MIB, collects=True)
    return replace(one, **more)  # type: ignore[arg-type]


def told(failure: Failure) -> list[str]:
    return [change.text for change in advise(failure, RunSettings(is_trainers=False)).changes]


def test_a_line_of_an_evaluation_without_a_batch_is_named() -> None:
    text = "make less at once at train.py:45: 190.0 MiB are asked for there"
    assert told(FAILURE) == [text]
    # A small request is not the reason, nor is a line that names nothing
    assert told(replace(FAILURE, requested_bytes=MIB)) == []
    assert told(replace(FAILURE, operation=FailedOperation())) == []


def test_a_list_comes_before_a_smaller_evaluation_if_it_holds_more_than_was_asked_for() -> None:
    scores = held("`scores` of evaluate()", 100)
    failure = replace(FAILURE, rows=128, census=[scores], requested_bytes=30 * MIB, operation=None)
    assert told(failure)[0] == "keep less in `scores` of evaluate(): 100.0 MiB"
    assert told(replace(failure, requested_bytes=190 * MIB))[0] == "per_device_eval_batch_size=32"


def test_what_a_library_keeps_of_a_method_is_returned_by_that() -> None:
    kept = held("`_predictions`", 175, returned_by="predict_step()")
    failure = replace(FAILURE, rows=128, census=[kept], requested_bytes=4 * MIB)
    assert told(failure)[0] == "return less from predict_step(): 175.0 MiB are kept"


@pytest.mark.parametrize(
    ("phase", "found", "text"),
    [
        ("forward", {"kind": "untrained"}, "torch.no_grad() around what `feats` computes"),
        (
            "forward",
            {"kind": "earlier", "num_passes": 16},
            "detach() what `feats` keeps, or backward() after each pass",
        ),
        ("evaluate", {"kind": "activations"}, "torch.no_grad() around the evaluation"),
        ("evaluate", {"is_unused": True}, "del `feats` before"),
        ("forward", {"is_unused": True}, "del `feats` before"),
    ],
)
def test_what_no_training_needs_is_told_first_and_no_batch_is_blamed(
    phase: str, found: dict[str, object], text: str
) -> None:
    failure = replace(FAILURE, phase=phase, census=[held("`feats`", 250, **found)])
    assert told(failure)[0] == text
    assert not [change for change in told(failure) if "batch" in change]


def test_activations_of_a_training_step_are_in_their_place() -> None:
    assert not [
        change
        for change in told(replace(FAILURE, phase="forward", census=[held("", 250, kind="activations")]))
        if "no_grad" in change
    ]


def test_of_a_callbacks_event_the_list_is_told_then_its_line() -> None:
    noise = CallbackFailure(callback="Noise.on_pre_optimizer_step", line="train.py:28", source="")
    failure = replace(FAILURE, phase="optimizer", callback=noise, census=[held("`Noise.gradients`", 190)])
    first, second = told(failure)
    assert first == "keep less in `Noise.gradients`: 190.0 MiB"
    assert second.startswith("make less at once at train.py:45")
    nothing_known = replace(failure, operation=None, census=[])
    assert told(nothing_known) == ["less memory in Noise.on_pre_optimizer_step (train.py:28)"]
    assert told(replace(nothing_known, rows=64)) == [
        "at most 16 rows at a time in Noise.on_pre_optimizer_step (train.py:28)"
    ]


def test_a_copy_of_model_and_optimizer_is_told_with_its_size_before_the_line() -> None:
    operation = FailedOperation(copied_bytes=160 * MIB, copied=("model", "optimizer"))
    assert told(replace(FAILURE, phase="save", operation=operation))[0] == (
        "torch.save to a file at train.py:45, not a copy"
    )
    assert not any("not a copy" in text for text in told(replace(FAILURE, operation=replace(operation, copied=()))))


def test_what_several_variables_lead_to_is_told_once() -> None:
    same = held("`Buffer.data`", 90)
    texts = told(replace(FAILURE, requested_bytes=MIB, operation=None, census=[same, same, replace(same)]))
    assert texts.count("keep less in `Buffer.data`: 90.0 MiB") == 1


OPTIMIZER = failure_of(
    where="host", phase="optimizer", step=9, used_bytes=900 * MIB, free_bytes=10 * MIB, requested_bytes=18 * MIB,
    parts={"optimizer": 64 * MIB, "parameters": 32 * MIB}, rows=32,
)  # fmt: skip
ADAM = RunSettings(
    is_trainers=False, trained_numbers=8 * MIB, trained_bytes=32 * MIB, optimizer_bytes=64 * MIB,
    state_bytes={"adamw": 64 * MIB, "adafactor": MIB},
)  # fmt: skip
DONE = [StepUse(step=step, rows=32, length=None, phases={"optimizer": 500 * MIB}) for step in range(1, 9)]


def offered(failure: Failure, settings: RunSettings = ADAM, uses: list[StepUse] | None = None) -> list[str]:
    return [change.text for change in advise(failure, settings, uses or []).changes]


def test_after_steps_that_went_well_another_optimizer_is_no_answer() -> None:
    copies = Holding(name="`Keeps.copies`", num_bytes=416 * MIB, collects=True, num_items=13)
    (change,) = advise(replace(OPTIMIZER, census=[copies]), ADAM, DONE).changes
    assert change.text == "keep less in `Keeps.copies`: 416.0 MiB"
    assert change.note == "13 entries of 32.0 MiB, copies of the model's weights: at most 6"
    (text,) = offered(OPTIMIZER, uses=DONE)
    assert text.startswith("less of what has grown since the first step")


@pytest.mark.parametrize(
    "failure",
    [
        replace(OPTIMIZER, frames=("step", "_init_group")),  # layers that were frozen until now
        replace(OPTIMIZER, parts={"optimizer": 90 * MIB}),  # a history that grows
    ],
)
def test_an_optimizer_whose_state_grows_is_still_the_cause(failure: Failure) -> None:
    assert "optim='sgd'" in offered(failure, uses=DONE)
    assert "optim='sgd'" in offered(OPTIMIZER), "the first step"


def test_of_a_list_that_is_not_full_it_is_told_what_the_full_one_takes() -> None:
    buffer = Holding(name="`buffer`", num_bytes=200 * MIB, collects=True, num_items=800, most_items=100_000)
    change = advise(replace(OPTIMIZER, phase="backward", census=[buffer]), ADAM, DONE).changes[0]
    assert change.note == "800 entries of 256.0 KiB: at most 400; full, with 100,000, it would take 24.4 GiB"
