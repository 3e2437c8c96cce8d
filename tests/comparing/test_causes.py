"""Which settings differ, and which of them are causes."""

from __future__ import annotations

from forgather_mem.comparing.verdict import Comparison, comparison_of
from forgather_mem.telemetry.report import RunReport
from tests.comparing.runs import run, side


def compared(before: RunReport, after: RunReport) -> Comparison:
    return comparison_of(side("a", before), side("b", after))


def test_what_is_off_in_both_does_not_differ() -> None:
    before = {"model.dtype": "float32", "optimizer.amsgrad": "False", "arguments.dataloader_num_workers": "0"}
    after = {"model.dtype": "float32", "optimizer.momentum": "0", "arguments.dataloader_num_workers": "2"}
    assert [one.name for one in compared(run(settings=before), run(settings=after)).settings] == [
        "arguments.dataloader_num_workers"
    ]


def test_checkpointing_is_named_once() -> None:
    names = ("arguments.gradient_checkpointing", "arguments.activation_checkpointing", "model.gradient_checkpointing")
    found = compared(
        run(settings=dict.fromkeys(names[:2], "False")),
        run(420, activations_peak=10, settings=dict.fromkeys(names, "True")),
    )
    assert [one.name for one in found.grown[0].causes] == [names[0]]
    only = compared(run(), run(420, activations_peak=10, settings={"model.dtype": "float32", names[2]: "True"}))
    assert [one.name for one in only.grown[0].causes] == [names[2]]


def test_a_batch_that_only_one_run_has_told_does_not_differ() -> None:
    before = {"batch.rows": "8", "arguments.per_device_train_batch_size": "8"}
    found = compared(run(settings=before), run(settings={"arguments.per_device_train_batch_size": "16"}))
    assert [one.name for one in found.settings] == ["arguments.per_device_train_batch_size"]


def test_a_setting_that_differs_within_a_side_is_no_cause() -> None:
    old = [run(settings={"threads": number, "arguments.optim": "sgd"}) for number in ("1", "2")]
    new = [run(settings={"threads": "2", "arguments.optim": "adamw_torch"}, optimizer=60) for _ in range(2)]
    found = comparison_of(side("a", *old), side("b", *new))
    assert [one.name for one in found.settings] == ["arguments.optim"]
