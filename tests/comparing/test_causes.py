"""Which settings differ, and which of them are causes."""

from dataclasses import replace
from typing import Any

import pytest

from forgather_mem.comparing.comparison import comparison_of
from forgather_mem.comparing.side import Side
from forgather_mem.comparing.text import comparison_text
from forgather_mem.telemetry.report import CleanupCall
from tests.comparing.runs import compared, leaking, run


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


LOOP = {"model.class": "A", "model.parameters": "1000", "optimizer": "AdamW", "batch.rows": "4"}
TRAINER = {
    **LOOP, "batch.rows": "8", "arguments.per_device_train_batch_size": "8", "arguments.optim": "adamw_torch",
    "optimizer.fused": "True",
}  # fmt: skip


def causes(before: dict[str, str], after: dict[str, str], **sizes: float) -> dict[str, list[str]]:
    found = compared(run(settings=before), run(580, settings=after, **sizes))
    return {one.part: [cause.name for cause in one.causes] for one in found.grown}


def test_what_a_plain_loop_has_none_of_is_no_cause_but_stands_in_the_table() -> None:
    sizes = {"activations_peak": 120, "optimizer": 60}
    assert causes(LOOP, TRAINER, **sizes) == {"activations": ["batch.rows"], "optimizer": ["optimizer.fused"]}
    fewer = causes(TRAINER, LOOP, **sizes)
    assert fewer == {"activations": [], "optimizer": ["optimizer.fused"]}, "fewer rows are not why it has grown"
    before, after = ({**told, "model.trained_parameters": size} for told, size in ((LOOP, "9"), (TRAINER, "20")))
    assert causes(before, after, optimizer=60)["optimizer"] == ["model.trained_parameters", "optimizer.fused"]
    found = compared(run(settings=LOOP), run(580, settings=TRAINER))
    assert "arguments.optim - adamw_torch" in " ".join(comparison_text(found).split())
    assert [one.name for one in found.settings if not one.comparable] == [
        "arguments.per_device_train_batch_size", "arguments.optim",
    ]  # fmt: skip


def test_what_another_model_does_not_have_is_no_cause_yet_its_class_is() -> None:
    before = {**LOOP, "model.intermediate_size": "128"}
    after = {**LOOP, "model.class": "B", "model.gradient_checkpointing": "True"}
    assert causes(before, after, parameters=20)["parameters"] == ["model.class", "model.gradient_checkpointing"]


def test_a_batch_decides_nothing_about_the_model() -> None:
    found = causes(LOOP, {**LOOP, "batch.rows": "8"}, parameters=20, activations_peak=120)
    assert found == {"activations": ["batch.rows"], "parameters": []}


def test_a_setting_that_differs_within_a_side_is_no_cause() -> None:
    old = [run(settings={"threads": number, "arguments.optim": "sgd"}) for number in ("1", "2")]
    new = [run(settings={"threads": "2", "arguments.optim": "adamw_torch"}, optimizer=60) for _ in range(2)]
    found = comparison_of(Side("a", old), Side("b", new))
    assert [one.name for one in found.settings] == ["arguments.optim"]


@pytest.mark.parametrize(
    ("setting", "values", "sizes", "part"),
    [
        ("forward.dtypes", ("float32", "bfloat16, float32"), {"activations_peak": 40}, "activations"),
        ("forward.attention", ("", "ScaledDotProductFlashAttention"), {"activations_peak": 40}, "activations"),
        ("loader.prefetch_factor", ("2", "16"), {"workers": 90}, "data workers"),
        ("calls.gc.collect", ("on", ""), {"held": 90}, "held"),
        ("callback.Average", ("", "True"), {"held": 90}, "held"),
        ("other_models", ("", "1 Linear"), {"held": 90}, "held"),
        ("collector", ("700, 10, 10", "off"), {"leak": leaking()}, "leak"),
    ],
)
def test_what_a_run_has_seen_is_a_cause(
    setting: str, values: tuple[str, str], sizes: dict[str, Any], part: str
) -> None:
    kind = setting.partition(".")[0]
    known = {"model.dtype": "float32", "threads": "2", f"{kind}.known": "1"}
    old, new = ({**known, **({setting: value} if value else {}), "threads": str(at)} for at, value in enumerate(values))
    held = {"held": 40} if "held" in sizes else {}
    found = compared(run(settings=old, **held), run(580, settings=new, **sizes))
    causes = {one.part: [cause.name for cause in one.causes] for one in found.grown}
    assert causes[part][0] == setting


def test_what_comes_of_another_setting_is_no_cause_beside_it() -> None:
    old = {"model.dtype": "float32", "forward.dtypes": "float32"}
    new = {"model.dtype": "bfloat16", "forward.dtypes": "bfloat16"}
    assert causes(old, new, activations_peak=40)["activations"] == ["model.dtype"]


def test_clean_up_calls_of_others_are_settings() -> None:
    row = CleanupCall(what="gc.collect", file="train.py", line=3, calls=10, seconds=0.1, freed_bytes=0, whose="user")
    ours = replace(row, what="torch.cuda.empty_cache", whose="us")
    found = compared(replace(run(), cleanup_calls=(row, ours)), run(580))
    assert [(one.name, one.before, one.after) for one in found.settings] == [("calls.gc.collect", "on", None)]
