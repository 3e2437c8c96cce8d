"""The causes other than the batch, and in which order they are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings
from forgather_mem.heap.failed_callback import CallbackFailure
from forgather_mem.heap.failed_lines import FailedOperation
from forgather_mem.heap.failed_variables import HeldVariable
from forgather_mem.heap.graphs.failed_graph import VainGraph
from forgather_mem.units import MIB

PAIRS = FailedOperation(function="rank", operands=(("q", (5000, 64)), ("a", (4000, 64))))
FAILURE = FailureContext(
    where="host",
    phase="evaluate",
    step=80,
    used_bytes=300 * MIB,
    free_bytes=200 * MIB,
    requested_bytes=190 * MIB,
    line="train.py:45",
    operation=PAIRS,
)


def held(name: str, mib: int, **more: object) -> HeldVariable:
    one = HeldVariable(name=name, line="train.py:8", num_bytes=mib * MIB, collects=True)
    return replace(one, **more)  # type: ignore[arg-type]


def told(failure: FailureContext) -> list[str]:
    return [change.text for change in advise(failure, RunSettings(is_trainers=False)).changes]


def test_a_line_of_an_evaluation_without_a_batch_is_named() -> None:
    text = "make less at once at train.py:45: 190.0 MiB are asked for there"
    assert told(FAILURE) == [text]
    # A small request is not the reason, nor is a line that names nothing
    assert told(replace(FAILURE, requested_bytes=MIB)) == []
    assert told(replace(FAILURE, operation=FailedOperation(function="main"))) == []


def test_a_list_comes_before_a_smaller_evaluation_if_it_holds_more_than_was_asked_for() -> None:
    scores = held("`scores` of evaluate()", 100)
    failure = replace(FAILURE, rows=128, variables=[scores], requested_bytes=30 * MIB, operation=None)
    assert told(failure)[0] == "keep less in `scores` of evaluate(): 100.0 MiB"
    assert told(replace(failure, requested_bytes=190 * MIB))[0] == "per_device_eval_batch_size=32"


def test_what_a_library_keeps_of_a_method_is_returned_by_that() -> None:
    kept = held("`_predictions`", 175, returned_by="predict_step()")
    failure = replace(FAILURE, rows=128, variables=[kept], requested_bytes=4 * MIB)
    assert told(failure)[0] == "return less from predict_step(): 175.0 MiB are kept"


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (VainGraph(line="train.py:38"), "torch.no_grad() around what train.py:38 calls"),
        (VainGraph(line="train.py:45", name="feats"), "torch.no_grad() around what makes `feats` before train.py:45"),
    ],
)
def test_a_graph_in_vain_is_told_first(graph: VainGraph, text: str) -> None:
    failure = replace(FAILURE, operation=replace(PAIRS, graph=graph), variables=[held("`feats` of main()", 250)])
    assert told(failure)[0] == text


def test_of_a_callbacks_event_the_list_is_told_then_its_line() -> None:
    noise = CallbackFailure(callback="Noise.on_pre_optimizer_step", line="train.py:28", source="")
    failure = replace(FAILURE, phase="optimizer", callback=noise, variables=[held("`Noise.gradients`", 190)])
    first, second = told(failure)
    assert first == "keep less in `Noise.gradients`: 190.0 MiB"
    assert second.startswith("make less at once at train.py:45")
    nothing_known = replace(failure, operation=None, variables=[])
    assert told(nothing_known) == ["less memory in Noise.on_pre_optimizer_step (train.py:28)"]
    assert told(replace(nothing_known, rows=64)) == [
        "at most 16 rows at a time in Noise.on_pre_optimizer_step (train.py:28)"
    ]


def test_a_copy_of_model_and_optimizer_is_told_with_its_size_before_the_line() -> None:
    operation = FailedOperation(function="keep", copied_bytes=160 * MIB, copied=("model", "optimizer"))
    assert told(replace(FAILURE, phase="save", operation=operation))[0] == (
        "torch.save to a file at train.py:45, not a copy"
    )
    assert not any("not a copy" in text for text in told(replace(FAILURE, operation=replace(operation, copied=()))))


def test_what_several_variables_lead_to_is_told_once() -> None:
    same = held("`Buffer.data`", 90)
    texts = told(replace(FAILURE, requested_bytes=MIB, operation=None, variables=[same, same, replace(same)]))
    assert texts.count("keep less in `Buffer.data`: 90.0 MiB") == 1
