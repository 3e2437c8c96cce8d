"""A file that says what trainings took, and what has grown since."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.comparing.baseline import Baseline, NoBaseline
from forgather_mem.comparing.comparison import comparison_of
from forgather_mem.comparing.side import Side
from forgather_mem.telemetry.report import Planned, PlannedPhase, RunReport
from tests.comparing.runs import MIB, on_device, run


def planned(mib: float, **changes: Any) -> RunReport:
    return replace(run(**changes), planned=Planned(planned_bytes=int(mib * MIB), phase="backward"))


def grown(before: RunReport, after: RunReport) -> list[str]:
    return list(Baseline.of([before]).grown(Baseline.of([after])))


def test_what_is_counted_may_grow_by_a_hundredth_and_resident_memory_by_a_tenth() -> None:
    assert grown(planned(100), planned(100.9)) == []
    assert grown(planned(100), planned(105)) == ["planned peak: 100.0 MiB in the baseline, 105.0 MiB now, 5.0 % more"]
    assert grown(run(500), run(549)) == []
    assert grown(run(500), run(551)) == ["the peak of host: 500.0 MiB in the baseline, 551.0 MiB now, 10.2 % more"]
    assert grown(run(50, optimizer=24), run(80, optimizer=24)) == [], "less than 32 MiB is nothing on the host"
    assert grown(run(), run(optimizer=25)) == ["optimizer: 24.0 MiB in the baseline, 25.0 MiB now, 4.2 % more"]
    assert grown(on_device(1000), on_device(1200))[0].startswith("the peak of gpu0: 1,000.0 MiB in the baseline")


def test_without_a_plan_activations_and_what_is_held_are_counted_too() -> None:
    assert grown(run(held=100), run(held=100.9)) == [], "less than a MiB is nothing"
    assert grown(run(held=100), run(held=114)) == ["held: 100.0 MiB in the baseline, 114.0 MiB now, 14.0 % more"]
    assert grown(run(held=100), run(held=100, activations_peak=79)) == [
        "activations: 76.0 MiB in the baseline, 79.0 MiB now, 3.9 % more"
    ]


def test_settings_that_differ_are_named_where_something_has_grown() -> None:
    old, new = {"model.attn_implementation": "sdpa"}, {"model.attn_implementation": "eager", "threads": "4"}
    assert grown(planned(100, settings=old), planned(120, settings=new))[1:] == [
        "since then model.attn_implementation is eager instead of sdpa",
        "since then threads is 4 instead of not set",
    ]
    assert grown(planned(100, settings=old), planned(100, settings=new)) == []


def test_what_can_not_be_compared_is_told() -> None:
    before = Baseline.of([planned(100), planned(200)])
    assert list(before.missing(Baseline.of([run()]))) == [
        "trainings: 2 in the baseline, 1 in this run",
        "the baseline has 'planned peak', which this run has not measured",
    ]
    assert list(before.missing(before)) == []
    other = Baseline.of([run(settings={"model.class": "B"})])
    (told,) = Baseline.of([planned(100, settings={"model.class": "A"})]).missing(other)
    assert told.endswith("which this run has not measured: it is of A, not of B")
    assert "of training 2: 200.0 MiB" in next(before.grown(Baseline.of([planned(100), planned(300)])))


def test_it_is_compared_with_a_run_like_another_run(tmp_path: Path) -> None:
    def differences(before: RunReport, after: RunReport) -> dict[str, float]:
        Baseline.of([before]).write(tmp_path / "memory.json")
        old = Baseline.read(tmp_path / "memory.json").trainings[0].as_report()
        found = comparison_of(Side("memory.json", [old]), Side("now", [after]))
        return {one.name: one.bytes for one in (found.planned or found.differences)}

    def by_phase(size: int) -> RunReport:
        phase = PlannedPhase(phase="backward", bytes=size, parts={"batch": size})
        return replace(run(), planned=Planned(planned_bytes=size, phase="backward", phases=(phase,)))

    assert differences(by_phase(MIB), by_phase(2 * MIB)) == {"planned": MIB, "batch": MIB}
    assert differences(run(held=100), run(held=114, optimizer=25))["held"] == 14 * MIB
    assert differences(run(held=100), run(held=114, optimizer=25))["optimizer"] == MIB


def test_the_file_is_the_same_whoever_writes_it_and_keeps_its_fractions(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    settings = {"threads": "1", "model.dtype": "float32"}
    Baseline.of([planned(100, settings=settings)]).write(first)
    told = json.loads(first.read_text())
    told["allowed_growth"]["counted"] = 0.2
    first.write_text(json.dumps(told))
    read = Baseline.read(first)
    Baseline.of([planned(100, settings=dict(reversed(settings.items())))], read).write(second)
    assert Baseline.read(second) == read
    assert list(read.grown(Baseline.of([planned(119)]))) == []
    lines = second.read_text().splitlines()
    assert [line.strip() for line in lines if "planned" in line] == ['"planned peak": 104857600']
    assert "schema" in told


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"trainings": 3}', '{"trainings": [1], "allowed_growth": {"counted": 0, "resident": 0}}',
     '{"trainings": [{"counted": {"a": "b"}, "resident": {}, "settings": {}}], '
     '"allowed_growth": {"counted": 0, "resident": 0}}',
     '{"trainings": [], "allowed_growth": {"counted": "much", "resident": 0}}', "\0"],
)  # fmt: skip
def test_another_file_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(NoBaseline, match=r"is no baseline\n  name another file, or remove it: "):
        Baseline.read(tmp_path / "other.json")
    with pytest.raises(NoBaseline, match=r"can't read .*nowhere.json': No such file or directory"):
        Baseline.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize("share", [5, 1, -0.1])
def test_a_share_that_would_let_everything_pass_is_refused(tmp_path: Path, share: object) -> None:
    file = tmp_path / "memory.json"
    Baseline.of([run()]).write(file)
    told = json.loads(file.read_text())
    told["allowed_growth"]["counted"] = share
    file.write_text(json.dumps(told))
    with pytest.raises(NoBaseline, match=r"must be from 0 to below 1\n  0.05 allows 5 %"):
        Baseline.read(file)


def test_what_comes_of_a_setting_is_not_told_beside_it() -> None:
    old = {
        "model.attn_implementation": "sdpa",
        "forward.attention": "ScaledDotProductFlashAttention",
        "forward.dtypes": "a",
    }
    told = grown(
        planned(100, settings=old), planned(105, settings={"model.attn_implementation": "eager", "forward.dtypes": "a"})
    )
    assert told[1:] == ["since then model.attn_implementation is eager instead of sdpa"]
