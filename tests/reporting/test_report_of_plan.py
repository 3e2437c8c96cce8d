"""A plan as part of a report."""

import json
from pathlib import Path

import pytest

from forgather_mem.reporting.build import planned_of, report_of_plan
from tests.comparing.runs import MIB, plan

SIZES = {"forward": {"activations": 3.0}, "backward": {"activations": 5.0}}


def test_of_both_planned_steps_the_higher_peak_of_a_phase_counts() -> None:
    two = plan(SIZES)
    two["phases"] += [{"step": 1, "phase": "backward", "bytes": 7 * MIB, "parts": {"activations": 7 * MIB}}]
    planned = planned_of(two)
    assert [(row.phase, row.bytes // MIB, row.parts) for row in planned.phases] == [
        ("forward", 3, {"activations": 3 * MIB}), ("backward", 7, {"activations": 7 * MIB}),
    ]  # fmt: skip


def test_the_file_of_a_plan_has_its_settings_and_its_batch(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"script": "a.py", "plans": [plan(SIZES)], "settings": {"arguments.optim": "sgd"}}))
    report = report_of_plan(file)
    assert report.run.script == "a.py"
    assert report.run.settings == {"arguments.optim": "sgd", "batch.rows": "8", "batch.length": "128"}
    assert report.planned.planned_bytes == 5 * MIB


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plans": []}', '{"plans": [3]}', '{"plans": [{"phases": []}]}'])
def test_what_is_no_plan_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert report_of_plan(tmp_path / "a.json") is None
