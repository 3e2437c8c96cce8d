"""Changes of a step: which values they name, and whether the training is another one with them."""

from typing import Any

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.remedy import changes_training
from forgather_mem.heap.failed_call import FailedOperation
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.failures import failure_of, replace
from tests.diagnose.oom.test_advice import settings


@pytest.mark.parametrize("rows", [256, 8, 4])
def test_a_jump_names_the_present_value(rows: int) -> None:
    failure = failure_of(where="device", phase="forward", step=0, rows=rows, length=512)
    change = advise(failure, settings(per_device_train_batch_size=rows)).changes[0]
    assert f"batch {rows} -> {change.set['per_device_train_batch_size']}" in (change.note or "")


@pytest.mark.parametrize("phase", ["optimizer", "save", "forward", "backward"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_advice_that_changes_the_training_says_so_and_stands_last(phase: str, where: Any) -> None:
    failure = failure_of(
        where=where, phase=phase, step=5, rows=8, length=300_000, used_bytes=9 * GIB, free_bytes=GIB,
        requested_bytes=4 * GIB, parts={"activations": 6 * GIB}, frames=("_save_optimizer_and_scheduler",),
    )  # fmt: skip
    changes = advise(failure, settings(save_safetensors=True)).changes
    order = [(change.predicted_bytes is None, changes_training(change)) for change in changes]
    assert order == sorted(order), "after what does not, among those with a prediction and those without"
    for change in changes:
        other = {"optim", "save_strategy", "save_only_model"} & {*change.set} or "dtype" in change.in_script
        fused = change.set.get("optim") in ("adamw_torch_fused", "paged_adamw_32bit")
        assert changes_training(change) == bool(other and not fused), change


OWN_LOOP = RunSettings(is_trainers=False)
AS_EVER = [
    StepUse(step=step, rows=4, length=None, phases={"forward": GIB}, saved_bytes=2 * MIB) for step in range(1, 6)
]
PAIRS = failure_of(
    where="host", phase="forward", step=9, rows=4, requested_bytes=94 * MIB, line="train.py:46",
    operation=FailedOperation(operands=(("boxes", (4000, 4)), ("anchors", (3072, 4)))),
)  # fmt: skip


def test_a_line_that_asks_for_more_than_such_batches_keep_is_named_and_no_batch() -> None:
    change = advise(PAIRS, OWN_LOOP, AS_EVER).changes[0]
    assert change.text == "make less at once at train.py:46: 94.0 MiB are asked for there"
    assert "`boxes` (4,000 x 4) and `anchors` (3,072 x 4)" in (change.note or "")


@pytest.mark.parametrize(
    "failure", [replace(PAIRS, rows=8), replace(PAIRS, requested_bytes=MIB), replace(PAIRS, phase="backward")]
)
def test_a_larger_batch_a_small_wish_and_a_backward_pass_are_about_the_batch(failure: Failure) -> None:
    assert "per_device_train_batch_size" in advise(failure, OWN_LOOP, AS_EVER).changes[0].set


def test_a_table_that_no_loader_makes_is_made_in_parts() -> None:
    failure = replace(PAIRS, phase="data", rows=None, array_type="float64", used_bytes=300 * MIB, free_bytes=80 * MIB)
    double = FailedOperation(at_once=2)
    assert advise(replace(failure, operation=double), OWN_LOOP).changes[0].text.startswith("make less at once at train")
    single = advise(replace(failure, operation=replace(double, at_once=1)), OWN_LOOP).changes[0]
    assert single.in_script == {"dtype": "float32"}, "half of it fits, beside nothing"
    loader = advise(replace(failure, array_type=None, operation=replace(double, is_loaders=True)), OWN_LOOP).changes[0]
    assert "batch" in loader.text
