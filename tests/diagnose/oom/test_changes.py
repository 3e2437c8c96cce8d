"""Changes of a step: which values they name, and whether the training is another one with them."""

from __future__ import annotations

from typing import Any

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.changes import changes_training
from forgather_mem.diagnose.oom.context import FailureContext
from forgather_mem.units import GIB
from tests.diagnose.oom.test_advice import settings


@pytest.mark.parametrize("rows", [256, 8, 4])
def test_a_jump_names_the_present_value(rows: int) -> None:
    failure = FailureContext(where="device", phase="forward", step=0, rows=rows, length=512)
    change = advise(failure, settings(per_device_train_batch_size=rows)).changes[0]
    assert f"batch {rows} -> {change.set['per_device_train_batch_size']}" in (change.note or "")


@pytest.mark.parametrize("phase", ["optimizer", "save", "forward", "backward"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_advice_that_changes_the_training_says_so_and_stands_last(phase: str, where: Any) -> None:
    failure = FailureContext(
        where=where, phase=phase, step=5, rows=8, length=300_000, used_bytes=9 * GIB, free_bytes=GIB,
        requested_bytes=4 * GIB, parts={"activations": 6 * GIB}, frames=("_save_optimizer_and_scheduler",),
    )  # fmt: skip
    changes = advise(failure, settings(save_safetensors=True)).changes
    assert [changes_training(change) for change in changes] == sorted(map(changes_training, changes))
    for change in changes:
        other = {"optim", "save_strategy", "save_only_model"} & {*change.set} or "dtype" in change.in_script
        fused = change.set.get("optim") in ("adamw_torch_fused", "paged_adamw_32bit")
        assert changes_training(change) == bool(other and not fused), change
