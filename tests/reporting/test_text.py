"""The texts that were promised, and what holds for all of them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.reporting.text import MAX_LINES, report_command
from tests.reporting.report_fixtures import all_well, killed, killed_by, leaking, out_of_memory, report_of, text_of
from tests.test_promises import compare

REPORTS = (all_well, leaking, out_of_memory, killed)
Make = Callable[[], dict[str, Any]]


@pytest.mark.parametrize("make", REPORTS)
def test_each_ending_reads_as_promised(make: Make) -> None:
    compare(f"report_{make.__name__}.txt", text_of(make()) + "\n")


@pytest.mark.parametrize("make", REPORTS)
def test_every_text_stays_within_its_lines_and_columns_whatever_the_names(make: Make) -> None:
    report = lengthened(make())
    lines = text_of(report).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("make", REPORTS)
def test_the_end_of_every_text_names_the_folder_however_much_there_is_to_tell(make: Make) -> None:
    report = make()
    report["run"].update(folder="out/forgather_mem", event_folder=None)
    for told in (report, lengthened(report)):
        lines = text_of(told).splitlines()
        assert lines[-2].startswith("forgather-mem report out/forgather_mem")
        assert len(lines) <= MAX_LINES


@pytest.mark.parametrize(("silent_s", "told"), [(20.3, "evaluate, 20.3 s before the end."), (4.9, "evaluate.")])
def test_a_last_sign_of_life_long_before_the_end_is_told_as_such(silent_s: float, told: str) -> None:
    report = killed()
    report["killed"]["silent_s"] = silent_s
    assert f"Last sign of life: step 7,310, {told}" in " ".join(text_of(report).split())


@pytest.mark.parametrize("make", REPORTS)
def test_colour_changes_no_word(make: Make) -> None:
    coloured = text_of(make(), color=True)
    assert "\x1b[1m" in coloured or make is all_well
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "") == text_of(make())


def test_a_script_that_does_not_train_has_no_steps_to_speak_of() -> None:
    report = killed_by(report_of("embed.py", 0, 3.0, None), signal=11)
    text = text_of(report)
    assert text.startswith("== forgather-mem == embed.py == crashed (SIGSEGV) after 3.0 s ==")
    assert "ENDED BY SIGSEGV, signal 11 (segmentation fault)" in text
    assert "No training step was seen" in text


def test_a_script_that_exits_in_the_middle_shows_its_code() -> None:
    leaves = {"exit_code": 3, "error": "SystemExit: 3", "error_line": "train.py:9"}
    text = text_of(report_of("train.py", 4, 3.0, "interrupted", run=leaves))
    assert text.startswith("== forgather-mem == train.py == ended after 4 steps in 3.0 s, exit 3 ==")
    assert "\nAt train.py:9: SystemExit: 3\n" in text
    ended = {"rss_peak_bytes": 2**30, "rss_end_bytes": 2**30, "allocated_end_bytes": 1}
    killed = {"signal": 2, "step": 4, "phase": "other"}
    text = text_of(report_of("train.py", 4, 3.0, "interrupted", run={"exit_code": 130}, host=ended, killed=killed))
    assert "host 0.00 1.00 1.00" in " ".join(text.split()), "it has read its end"
    assert text.startswith("== forgather-mem == train.py == interrupted after 4 steps in 3.0 s ==")


def test_when_the_memory_will_be_full_and_how_sure_that_is() -> None:
    report = leaking()
    report["leak"].update(full_at_step=14600, sure="not yet", bytes_per_step_low=0.0, bytes_per_step_high=0.0)
    text = " ".join(text_of(report).split())
    assert (
        "LEAK GPU 0 grows 3.1 MiB a step, since step 60, full near step 14,600 at its last pace. Confidence: low"
        in text
    )
    assert "low (only 2,000 steps seen)." in text


def lengthened(report: dict[str, Any]) -> dict[str, Any]:
    """The same with long names and control characters in every text that comes from a user's files."""
    long = copy.deepcopy(report)
    tail = "\x1b[31m\n" + "name " * 30 + "x" * 200

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("where", "end", "phase", "what", "whose", "limit_kind", "verdict", "sure", "folder", "event_folder")
            return {key: inner if key in kept else change(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [change(inner) for inner in value]
        return value + tail if isinstance(value, str) else value

    return change(long)


def test_the_command_for_a_report_works_in_the_shell_that_started_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    monkeypatch.chdir(tmp_path / "work")
    run = tmp_path / "work/forgather_mem/1 a"
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert report_command(str(run)) == "forgather-mem report 'forgather_mem/1 a'"
    assert report_command(str(tmp_path / "out")) == f"forgather-mem report {tmp_path}/out"
    monkeypatch.setenv("PWD", str(tmp_path))
    assert report_command(str(run)) == f"forgather-mem report '{run}'"
    monkeypatch.delenv("PWD")
    assert report_command(str(run)) == "forgather-mem report 'forgather_mem/1 a'"
