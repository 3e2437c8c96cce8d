"""Plans are compared to the byte: each part in each phase."""

from __future__ import annotations

from typing import Any

from forgather_mem.comparing.text import comparison_text
from forgather_mem.comparing.verdict import Comparison, comparison_of, to_json
from tests.comparing.runs import MIB, leaking, run, side

MODEL = {"parameters": 14.0, "optimizer": 28.0}


def sizes(activations: float = 80, results: float = 8, **model: float) -> dict[str, dict[str, float]]:
    whole = {**MODEL, **model}
    return {
        "forward": {**whole, "activations": activations, "temporaries": 2},
        "backward": {**whole, "activations": activations, "temporaries": 8},
        "optimizer": {**whole, "gradients": 14},
        "evaluate": {**whole, "results": results},
    }


def compared(after: dict[str, dict[str, float]], **changes: Any) -> Comparison:
    return comparison_of(side("a", run(planned=sizes())), side("b", run(planned=after, **changes)))


def grown(after: dict[str, dict[str, float]], **changes: Any) -> list[tuple[str, str, float]]:
    return [(one.part, one.phase, one.bytes / MIB) for one in compared(after, **changes).grown]


def test_of_equal_plans_nothing_is_said_however_resident_memory_differs() -> None:
    found = compared(sizes(), peak=515)
    assert (found.grown, found.growth) == ([], 0.0)
    assert comparison_text(found).startswith("No difference: b takes as much at the planned peak, to the byte.\n")


def test_a_difference_that_resident_memory_can_not_tell_is_told() -> None:
    assert grown(sizes(activations=81), peak=501) == [("activations", "backward", 1)]
    assert compared(sizes(activations=81)).growth == 1 / 130
    assert grown(sizes(optimizer=0)) == [("optimizer", "", -28)]


def test_the_part_at_the_peak_comes_before_what_differs_elsewhere() -> None:
    assert grown(sizes(activations=84, results=40)) == [("activations", "backward", 4), ("results", "evaluate", 32)]
    assert grown(sizes(results=200)) == [("results", "evaluate", 192)], "where the peak is now"
    assert grown(sizes(results=40)) == [("results", "evaluate", 32)]


def test_what_is_in_no_plan_is_told_beside_it() -> None:
    assert grown(sizes(activations=90), peak=680, leak=leaking()) == [
        ("leak", "", 180), ("activations", "backward", 10),
    ]  # fmt: skip
    assert grown(sizes(), held=14) == [("held", "", 14)]


def test_resident_memory_that_no_plan_explains_is_a_number() -> None:
    found = compared(sizes(), peak=700)
    assert found.grown == []
    assert "resident: 200.0 MiB more\n" in comparison_text(found)


def test_the_table_has_a_row_for_each_part_and_a_column_for_each_phase() -> None:
    lines = comparison_text(compared(sizes(activations=90), peak=510)).splitlines()
    assert lines[0] == "b takes 10.0 MiB more at the planned peak, nearly all of it activations in"
    assert "resident: 10.0 MiB more, which equal runs differ by, too" in lines
    assert [line.split() for line in lines if line.startswith(("part in", "activations", "all"))][:3] == [
        ["part", "in", "forward", "backward", "optimizer", "evaluate"],
        ["activations", "+10.0", "MiB", "+10.0", "MiB", "=", "="],
        ["all", "+10.0", "MiB", "+10.0", "MiB", "=", "="],
    ]


def test_as_json_each_is_exact() -> None:
    told: Any = to_json(compared(sizes(activations=90)))
    assert told["place"] == "plan"
    first = told["planned"][0]
    assert (first["name"], first["phase"], first["low"], first["high"]) == ("planned", "backward", 10 * MIB, 10 * MIB)
