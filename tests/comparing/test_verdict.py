"""Which part and which setting explain a difference."""

from __future__ import annotations

from typing import Any

import pytest

from forgather_mem.comparing.verdict import Comparison, comparison_of, to_json
from forgather_mem.telemetry.report import RunReport
from tests.comparing.runs import MIB, leaking, on_device, run, side


def compared(before: RunReport, after: RunReport) -> Comparison:
    return comparison_of(side("a", before), side("b", after))


def explained(**changes: Any) -> list[tuple[str, str]]:
    settings = changes.pop("settings", {"model.dtype": "float32"})
    return [(one.part, one.phase) for one in compared(run(), run(settings=settings, **changes)).grown]


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"peak": 580, "activations_peak": 156}, ("activations", "backward")),
        ({"peak": 580, "activations_peak": 156, "phases": {"forward": 590}}, ("activations", "forward")),
        ({"peak": 500, "optimizer": 4}, ("optimizer", "optimizer")),
        ({"peak": 512, "gradients": 24}, ("gradients", "backward")),
        ({"peak": 500, "workers": 300}, ("data workers", "")),
        ({"peak": 680, "leak": leaking()}, ("leak", "")),
        ({"peak": 700, "phases": {"startup": 550}}, ("other", "startup")),
        ({"peak": 700}, ("other", "")),
    ],
    ids=["activations", "forward", "optimizer", "gradients", "workers", "leak", "startup", "other"],
)
def test_the_part_that_differs_most_stands_first(changes: dict[str, Any], first: tuple[str, str]) -> None:
    assert explained(**changes)[0] == first


def test_an_evaluation_that_takes_more_than_the_steps_is_named() -> None:
    found = compared(run(), run(700, phases={"evaluate": 700, "backward": 500, "forward": 495, "optimizer": 490}))
    assert [(one.part, round(one.bytes / MIB)) for one in found.grown] == [("evaluate", 200)]


def test_an_evaluation_is_named_too_where_activations_can_not_be_told_from_the_rest() -> None:
    changes = {"arguments.eval_strategy": "steps", "arguments.per_device_train_batch_size": "4"}
    after = run(700, activations_peak=60, settings=changes, phases={"evaluate": 700, "backward": 500})
    (found,) = compared(run(settings={"arguments.eval_strategy": "no"}), after).grown
    assert (found.part, found.phase, round(found.bytes / MIB)) == ("evaluate", "evaluate", 200)
    assert [one.name for one in found.causes] == ["arguments.eval_strategy"]


def test_of_equal_runs_nothing_is_said() -> None:
    found = compared(run(500), run(504, activations_peak=73))
    assert (found.grown, found.growth, found.settings, found.new_leaks) == ([], 0.0, [], [])


def test_settings_are_causes_of_the_parts_that_they_decide_about_the_likeliest_first() -> None:
    old = {"arguments.optim": "adamw_torch", "batch.length": "128", "model.attn_implementation": "sdpa"}
    new = {"arguments.optim": "sgd", "batch.length": "256", "model.attn_implementation": "eager", "threads": "2"}
    found = compared(run(settings=old), run(556, settings=new, activations_peak=156, optimizer=0))
    causes = {one.part: [cause.name for cause in one.causes] for one in found.grown}
    assert causes == {
        "activations": ["model.attn_implementation", "batch.length", "threads"],
        "optimizer": ["arguments.optim", "threads"],
    }
    assert [(one.name, one.before, one.after) for one in found.settings][-1] == ("threads", None, "2")


def test_what_activations_gain_and_the_rest_loses_is_one_difference_that_a_setting_assigns() -> None:
    def first(settings: dict[str, str]) -> list[tuple[str, int]]:
        found = compared(run(), run(440, activations_peak=96, settings=settings))
        return [(one.part, round(one.bytes / MIB)) for one in found.grown]

    assert first({"model.dtype": "bfloat16"}) == [("activations", -60)]
    assert first({"model.dtype": "float32", "threads": "2"}) == [("other", -60)]


def test_activations_that_the_rest_makes_up_for_are_no_difference() -> None:
    # Two equal runs of 12 steps, measured on a busy machine
    measured = [{"activations_peak": 98.6, "other": 423.6}, {"activations_peak": 86.6, "other": 431.6}]
    first, second = (run(578 - 4 * number, **sizes) for number, sizes in enumerate(measured))
    assert compared(first, second).grown == compared(second, first).grown == []
    larger = compared(run(), run(530, activations_peak=116, other=370)).grown
    assert [(one.part, round(one.bytes / MIB)) for one in larger] == [("activations", 34)]


def test_a_leak_is_not_counted_twice_where_activations_can_not_be_told_from_the_rest() -> None:
    found = compared(run(), run(680, leak=leaking(), activations_peak=60)).grown
    assert [(one.part, round(one.bytes / MIB)) for one in found] == [("leak", 180)]


def test_a_rise_that_a_setting_explains_is_told_although_the_rest_has_lost_some() -> None:
    def told(settings: dict[str, str]) -> list[tuple[str, int]]:
        after = run(520, activations_peak=116, settings=settings)
        return [(one.part, round(one.bytes / MIB)) for one in compared(run(), after).grown]

    assert told({"model.dtype": "float32", "model.attn_implementation": "eager"}) == [("activations", 20)]
    assert told({"model.dtype": "float32", "threads": "2"}) == []


def test_a_leak_is_new_gone_or_the_same() -> None:
    def told(before: RunReport, after: RunReport) -> tuple[int, int]:
        found = compared(before, after)
        return len(found.new_leaks), len(found.gone_leaks)

    leaks, others = run(680, leak=leaking()), run(680, leak=leaking("Trainer.cache"))
    assert (told(run(), leaks), told(leaks, run()), told(leaks, leaks), told(leaks, others)) == (
        (1, 0), (0, 1), (0, 0), (1, 1),
    )  # fmt: skip


def test_growth_is_that_of_the_peak_or_of_the_parts_each_of_its_own() -> None:
    assert compared(run(), run(600)).growth == pytest.approx(0.2, abs=0.05)
    assert compared(run(), run(400)).growth < 0
    assert compared(run(optimizer=100), run(optimizer=105)).growths == {"parts": pytest.approx(5 / 200, rel=0.05)}
    assert compared(run(), run(workers=300)).growth == 0.0


def test_growth_of_small_parts_is_not_hidden_by_libraries() -> None:
    base = {"parameters": 1, "gradients": 1, "optimizer": 2}
    before, after = (run(326, held=131, activations_peak=size, **base) for size in (4.8, 8))
    found = compared(before, after)
    assert found.growths == {
        "parts": pytest.approx((3.2 - 1) / 8.8, abs=0.01),
        "parts and held": pytest.approx((3.2 - 1) / 139.8, abs=0.001),
    }
    assert compared(before, run(326, held=141, activations_peak=4.8, **base)).growths == {
        "parts and held": pytest.approx((10 - 1.4) / 139.8, abs=0.001)
    }
    assert found.growth == found.growths["parts"]
    assert compared(after, before).growth < 0


def test_a_device_is_compared_where_both_have_used_one() -> None:
    found = compared(on_device(1000), on_device(1200))
    assert (found.place, found.peak.bytes, found.peak.is_sure) == ("device", 200 * MIB, True)
    assert compared(on_device(1000), run()).place == "host"


def test_as_json_it_has_all_differences() -> None:
    told: Any = to_json(compared(run(), run(580, activations_peak=156, versions={"torch": "2.14.0"})))
    assert told["explained_by"][0]["part"] == "activations"
    assert told["differences"][0]["name"] == "peak"
    assert told["differences"][0]["sure"] is True
    sizes = [one[name] for one in told["differences"] for name in ("before", "after", "low", "high")]
    assert {type(size) for size in (*sizes, told["explained_by"][0]["bytes"])} == {int}
    assert told["versions"] == [{"name": "torch", "before": "2.13.0", "after": "2.14.0", "comparable": True}]


def test_counted_activations_are_told_to_a_hundredth_and_nothing_is_joined_to_them() -> None:
    found = compared(run(held=100), run(490, held=100, activations_peak=78))
    assert [(one.part, one.bytes) for one in found.grown] == [("activations", 2 * MIB)]
    assert compared(run(held=100), run(490, held=100, activations_peak=76.5)).grown == []
    assert found.joined is None


def test_a_copy_that_is_kept_is_found_although_resident_memory_can_not_tell() -> None:
    def told(**changes: Any) -> list[tuple[str, str, int]]:
        found = compared(run(held=100), run(503, **changes)).grown
        return [(one.part, one.phase, round(one.bytes / MIB)) for one in found]

    assert told(held=114) == [("held", "", 14)]
    assert told(held=114, held_at_start=14) == [("held", "startup", 14)]
    assert told(held=100.9) == []
    assert told(held=280, leak=leaking()) == [("leak", "", 180)], "it is the same memory"


def test_parts_that_one_setting_explains_stand_before_what_is_held() -> None:
    half = {"parameters": 6, "gradients": 6, "optimizer": 12, "settings": {"model.dtype": "bfloat16"}}

    def order(held: float) -> list[str]:
        return [one.part for one in compared(run(held=100), run(508, held=held, activations_peak=60, **half)).grown]

    assert order(held=150) == ["activations", "optimizer", "parameters", "gradients", "held"]
    assert order(held=350)[0] == "held", "four times as much as all of them is not theirs"


def test_what_is_held_is_not_compared_where_only_one_run_was_long_enough_to_read_its_model() -> None:
    short = run(held=112, parameters=0, gradients=0, optimizer=0, steps=6)
    assert [one.name for one in compared(short, run(held=100)).differences if one.name == "held"] == []
    assert compared(short, run(held=100)).grown == []


def test_other_models_are_told_exactly_and_not_once_more_as_held_or_as_the_rest() -> None:
    known = {"model.dtype": "float32", "other_models.bytes": "0"}
    more = {**known, "other_models": "1 Teacher", "other_models.bytes": str(42 * MIB)}
    for held in ({}, {"held": 100, "held_at_start": 60}):
        after = {name: size + 42 for name, size in held.items()}
        (one,) = compared(run(settings=known, **held), run(542, settings=more, **after)).grown
        assert (one.part, one.phase, one.bytes) == ("other models", "startup", 42 * MIB)
        assert [cause.name for cause in one.causes] == ["other_models"]
