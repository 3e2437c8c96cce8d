"""Which part and which setting explain a difference."""

from typing import Any

import pytest

from forgather_mem.comparing.comparison import Comparison, to_json
from forgather_mem.comparing.text import comparison_text, sentences
from forgather_mem.telemetry.report import LeakReport, RunReport
from tests.comparing.runs import MIB, compared, leaking, on_device, run

MODEL = {"parameters": 14.0, "optimizer": 28.0}


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"peak": 580, "activations_peak": 156}, "activations"),
        ({"peak": 500, "optimizer": 4}, "optimizer"),
        ({"peak": 512, "gradients": 24}, "gradients"),
        ({"peak": 500, "workers": 300}, "data workers"),
        ({"peak": 680, "leak": leaking()}, "leak"),
        ({"peak": 580, "held": 80}, "held"),
    ],
    ids=["activations", "optimizer", "gradients", "workers", "leak", "held"],
)
def test_the_part_that_differs_most_stands_first_without_a_phase(changes: dict[str, Any], first: str) -> None:
    found = compared(run(), run(**changes)).grown[0]
    assert (found.part, found.phase) == (first, "")


@pytest.mark.parametrize(
    "changes",
    [{}, {"phases": {"startup": 550}}, {"phases": {"evaluate": 700, "backward": 500}}],
    ids=["any", "startup", "evaluation"],
)
def test_what_resident_memory_gains_is_a_number_and_nobody_tells_what_it_is(changes: dict[str, Any]) -> None:
    found = compared(run(settings={"arguments.eval_strategy": "no"}), run(700, **changes))
    assert (found.grown, found.peak.bytes, found.peak.is_sure) == ([], 200 * MIB, True)
    assert found.growth == pytest.approx(0.35, abs=0.05)


def test_activations_that_were_not_counted_are_not_compared() -> None:
    for before, after in ((False, False), (False, True)):
        found = compared(run(counted=before), run(580, activations_peak=156, counted=after))
        assert found.grown == []
        assert "activations" not in [one.name for one in found.differences]


def test_of_equal_runs_nothing_is_said() -> None:
    found = compared(run(500), run(504, activations_peak=75.5))
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


def test_a_leak_is_new_gone_or_the_same() -> None:
    def told(before: RunReport, after: RunReport) -> tuple[int, int]:
        found = compared(before, after)
        return len(found.new_leaks), len(found.gone_leaks)

    leaks, others = run(680, leak=leaking()), run(680, leak=leaking("Trainer.cache"))
    assert (told(run(), leaks), told(leaks, run()), told(leaks, leaks), told(leaks, others)) == (
        (1, 0), (0, 1), (0, 0), (1, 1),
    )  # fmt: skip


def test_without_a_verdict_of_one_side_no_leak_is_new_or_gone_and_it_has_no_size() -> None:
    short = run(held=100, steps=30, leak=LeakReport(judged=True, why="host memory grew 2.0 MiB a step"))
    leaks = run(680, held=280, leak=leaking())
    for sides in ((short, leaks), (leaks, short)):
        found = compared(*sides)
        assert (found.new_leaks, found.gone_leaks, [one.part for one in found.grown]) == ([], [], ["held"])
        assert "no verdict on leaks: host memory grew 2.0 MiB a step" in " ".join(sentences(found))


def test_growth_is_that_of_the_peak_or_of_the_parts_each_of_its_own() -> None:
    assert compared(run(), run(600)).growth == pytest.approx(0.2, abs=0.05)
    assert compared(run(), run(400)).growth < 0
    grown = pytest.approx(5 / 200, rel=0.05)
    assert compared(run(optimizer=100), run(optimizer=105)).growths == {"parts": grown, "parts and held": grown}
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


def test_counted_activations_are_told_to_a_hundredth() -> None:
    found = compared(run(held=100), run(490, held=100, activations_peak=78))
    assert [(one.part, one.bytes) for one in found.grown] == [("activations", 2 * MIB)]
    assert compared(run(held=100), run(490, held=100, activations_peak=76.5)).grown == []


def test_a_copy_that_is_kept_is_found_although_resident_memory_can_not_tell() -> None:
    def told(**changes: Any) -> list[tuple[str, int]]:
        found = compared(run(held=100), run(503, **changes)).grown
        return [(one.part, round(one.bytes / MIB)) for one in found]

    assert told(held=114) == [("held", 14)]
    assert told(held=100.9) == []
    assert told(held=280, leak=leaking()) == [("leak", 182)], "it is the same memory"
    assert told(held=400, leak=leaking()) == [("leak", 182), ("held", 118)], "a copy beside the leak"


def test_a_leak_that_both_have_is_told_by_what_is_held_and_stands_first_when_that_has_grown() -> None:
    def told(**after: Any) -> list[tuple[str, str, int]]:
        found = compared(run(held=280, leak=leaking()), run(503, **after)).grown
        return [(one.part, one.holder, round(one.bytes / MIB)) for one in found]

    assert told(held=280, leak=leaking(mib_per_step=2.01)) == [], "two estimates of one leak differ a little"
    assert told(held=460, leak=leaking(mib_per_step=4)) == [("leak", "Trainer.losses", 182)]
    more = told(held=280, leak=leaking("Trainer.cache", mib_per_step=2.1), optimizer=84, workers=300)
    assert more == [("leak", "Trainer.cache", 9), ("optimizer", "", 60), ("data workers", "", 300)]


def test_what_is_held_is_not_compared_where_only_one_run_was_long_enough_to_read_its_model() -> None:
    short = run(held=112, parameters=0, gradients=0, optimizer=0, steps=6)
    assert [one.name for one in compared(short, run(held=100)).differences if one.name == "held"] == []
    assert compared(short, run(held=100)).grown == []


def test_other_models_are_told_exactly_and_not_once_more_as_held_or_as_the_rest() -> None:
    known = {"model.dtype": "float32", "other_models.bytes": "0"}
    more = {**known, "other_models": "1 Teacher", "other_models.bytes": str(42 * MIB)}
    for held in ({"held": 0}, {"held": 100}):
        after = {name: size + 42 for name, size in held.items()}
        found = compared(run(settings=known, **held), run(542, settings=more, **after))
        (one,) = found.grown
        assert (one.part, one.bytes) == ("other models", 42 * MIB)
        assert [cause.name for cause in one.causes] == ["other_models"]
        assert found.growths["parts and held"] > 0, "a gate sees it"


def sizes(activations: float = 80, results: float = 8, **model: float) -> dict[str, dict[str, float]]:
    whole = {**MODEL, **model}
    return {
        "forward": {**whole, "activations": activations, "temporaries": 2},
        "backward": {**whole, "activations": activations, "temporaries": 8},
        "optimizer": {**whole, "gradients": 14},
        "evaluate": {**whole, "results": results},
    }


def planned(after: dict[str, dict[str, float]], **changes: Any) -> Comparison:
    return compared(run(planned=sizes()), run(planned=after, **changes))


def grown_by_plan(after: dict[str, dict[str, float]], **changes: Any) -> list[tuple[str, str, float]]:
    return [(one.part, one.phase, one.bytes / MIB) for one in planned(after, **changes).grown]


def test_of_equal_plans_nothing_is_said_however_resident_memory_differs() -> None:
    found = planned(sizes(), peak=515)
    assert (found.grown, found.growth) == ([], 0.0)
    assert comparison_text(found).startswith("No difference: b takes as much at the planned peak, to the byte.\n")


def test_a_difference_that_resident_memory_can_not_tell_is_told() -> None:
    assert grown_by_plan(sizes(activations=81), peak=501) == [("activations", "backward", 1)]
    assert planned(sizes(activations=81)).growth == 1 / 130
    assert grown_by_plan(sizes(optimizer=0)) == [("optimizer", "", -28)]


def test_the_part_at_the_peak_comes_before_what_differs_elsewhere() -> None:
    assert grown_by_plan(sizes(activations=84, results=40)) == [
        ("activations", "backward", 4),
        ("results", "evaluate", 32),
    ]
    assert grown_by_plan(sizes(results=200)) == [("results", "evaluate", 192)], "where the peak is now"
    assert grown_by_plan(sizes(results=40)) == [("results", "evaluate", 32)]


def test_what_is_in_no_plan_is_told_beside_it() -> None:
    assert grown_by_plan(sizes(activations=90), peak=680, leak=leaking()) == [
        ("leak", "", 182), ("activations", "backward", 10),
    ]  # fmt: skip
    assert grown_by_plan(sizes(), held=14) == [("held", "", 14)]


def test_resident_memory_that_no_plan_explains_is_a_number() -> None:
    found = planned(sizes(), peak=700)
    assert found.grown == []
    assert "resident: 200.0 MiB more\n" in comparison_text(found)


def test_the_table_has_a_row_for_each_part_and_a_column_for_each_phase() -> None:
    lines = comparison_text(planned(sizes(activations=90), peak=510)).splitlines()
    assert lines[0] == "b takes 10.0 MiB more at the planned peak: activations +10.0 MiB in backward."
    assert "resident: 10.0 MiB more, which equal runs differ by, too" in lines
    assert [line.split() for line in lines if line.startswith(("part in", "activations", "all"))][:3] == [
        ["part", "in", "forward", "backward", "optimizer", "evaluate"],
        ["activations", "+10.0", "MiB", "+10.0", "MiB", "=", "="],
        ["all", "+10.0", "MiB", "+10.0", "MiB", "=", "="],
    ]


def test_as_json_each_is_exact() -> None:
    told: Any = to_json(planned(sizes(activations=90)))
    assert told["place"] == "plan"
    first = told["planned"][0]
    assert (first["name"], first["phase"], first["low"], first["high"]) == ("planned", "backward", 10 * MIB, 10 * MIB)
