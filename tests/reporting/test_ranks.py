"""Reports of several ranks as one, and the rank that failed first."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.reporting.ranks import LauncherWord, first_failure
from forgather_mem.reporting.run_dir import read_run, run_report
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB
from tests.json_schema import assert_fits
from tests.reporting.left_by_ranks import LOST, ended, no_end
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import leaking, merged, report_of, text_of, written

OWN = "ValueError: no such row"


def first_text(folder: Path, word: LauncherWord | None = None) -> str:
    report = run_report(folder, word or LauncherWord())
    assert_fits(to_dict(report))
    return report_text(report)


def test_a_rank_without_an_end_failed_before_those_that_lost_their_peer(tmp_path: Path) -> None:
    no_end(tmp_path, 1, 3, step=30, phase="data")
    for rank in (0, 2):
        ended(tmp_path, rank, 3)
    text = first_text(tmp_path)
    assert "RANK 1 OF 3 FAILED FIRST, at step 31, data.\n  The others: 2 ended by an exception." in text
    assert "ENDED UNEXPECTEDLY" in text


@pytest.mark.parametrize(
    "lost",
    [
        LOST,
        "DistBackendError: NCCL communicator was aborted on rank 0",
        "DistNetworkError: The client socket has timed out after 60000ms",
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
        "RuntimeError: [Rank 0] Watchdog caught collective operation timeout",
    ],
)
def test_an_own_error_came_before_a_lost_peer_and_before_who_was_ended(tmp_path: Path, lost: str) -> None:
    ended(tmp_path, 0, 4, lost)
    no_end(tmp_path, 1, 4)
    no_end(tmp_path, 2, 4, step=29)
    ended(tmp_path, 3, 4, OWN)
    text = first_text(tmp_path)
    assert "RANK 3 OF 4 FAILED FIRST, after 30 steps: ValueError: no such row." in text
    assert "The others: 2 left no end, 1 ended by an exception." in text
    assert "KILLED" not in text


def test_of_several_without_an_end_it_was_most_likely_the_one_for_which_the_others_waited(tmp_path: Path) -> None:
    for rank, phase in enumerate(["backward", "backward", "forward", "backward"]):
        no_end(tmp_path, rank, 4, phase=phase)
    assert "RANK 2 OF 4 MOST LIKELY FAILED FIRST, at step 31, forward." in first_text(tmp_path)
    no_end(tmp_path, 3, 4, phase="forward")
    assert "ONE OF RANKS 2, 3 MOST LIKELY FAILED FIRST, at step 31, forward." in first_text(tmp_path)
    no_end(tmp_path, 0, 4, step=29, phase="optimizer")
    assert "RANK 0 OF 4 MOST LIKELY FAILED FIRST, at step 30, optimizer." in first_text(tmp_path)


def test_where_all_went_at_once_at_the_same_place_nobody_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        no_end(tmp_path, rank, 3)
    text = first_text(tmp_path)
    assert "FAILED" not in text
    assert "ENDED UNEXPECTEDLY: killed, crashed, or the machine went down. Last sign of\n  life: step 31" in text


def test_memory_that_ran_out_is_told_as_such_and_not_as_the_peers_that_were_lost(tmp_path: Path) -> None:
    ended(tmp_path, 0, 2)
    ended(tmp_path, 1, 2, "MemoryError", end="oom")
    first = run_report(tmp_path).first_failure
    assert (first.rank, first.how, first.sure) == (1, "oom", True)


def test_the_launcher_knows_whose_signal_was_not_its_own(tmp_path: Path) -> None:
    for rank in range(3):
        no_end(tmp_path, rank, 3, phase="data" if rank == 0 else "backward")
    word = LauncherWord({0: (-15, 101), 1: (-15, 101), 2: (-9, 100)})
    text = first_text(tmp_path, word)
    assert "killed (SIGKILL) after 30 steps" in text
    assert "RANK 2 OF 3 FAILED FIRST, at step 31, backward." in text
    assert "KILLED BY SIGKILL" in text
    rows = run_report(tmp_path, word).ranks
    assert [row.signal for row in rows] == [15, 15, 9]


def test_an_own_error_counts_also_of_a_rank_that_its_launcher_ended_while_it_closed(tmp_path: Path) -> None:
    ended(tmp_path, 0, 2)
    ended(tmp_path, 1, 2, OWN)
    assert "RANK 1 OF 2 FAILED FIRST" in first_text(tmp_path, LauncherWord({0: (1, 100), 1: (-15, 101)}))


def test_who_was_killed_for_not_ending_when_asked_did_not_fail_first(tmp_path: Path) -> None:
    no_end(tmp_path, 0, 2, phase="data")
    ended(tmp_path, 1, 2, OWN)
    word = LauncherWord({1: (1, 100), 0: (-9, 131)})
    assert "RANK 1 OF 2 FAILED FIRST" in first_text(tmp_path, word)


def test_an_exit_without_an_error_has_its_code(tmp_path: Path) -> None:
    ended(tmp_path, 0, 2)
    no_end(tmp_path, 1, 2, phase="data")
    word = LauncherWord({1: (3, 100), 0: (1, 100)})
    text = first_text(tmp_path, word)
    assert "RANK 1 OF 2 FAILED FIRST, at step 31, data: exit code 3." in text
    assert "UNEXPECTEDLY" not in text
    first = run_report(tmp_path, word).first_failure
    assert (first.how, first.exit_code) == ("exited", 3)


def test_a_rank_that_died_before_it_left_anything_is_named_by_its_launcher(tmp_path: Path) -> None:
    ended(tmp_path, 0, 2)
    text = first_text(tmp_path, LauncherWord({1: (-9, 100), 0: (1, 101)}))
    assert "RANK 1 OF 2 FAILED FIRST, before its first step: SIGKILL." in text
    assert "no files from rank 1" in text


def test_where_all_were_asked_to_end_the_one_that_stood_still_is_named_and_nobody_failed(tmp_path: Path) -> None:
    no_end(tmp_path, 0, 2)
    no_end(tmp_path, 1, 2, phase="data")
    text = first_text(tmp_path, LauncherWord(asked=15))
    assert "RANK 1 OF 2 WAS BEHIND the others, at step 31, data, when all were asked to end." in text
    assert "ENDED BY SIGTERM" in text
    assert "FAILED" not in text
    no_end(tmp_path, 1, 2)
    assert "BEHIND" not in first_text(tmp_path, LauncherWord(asked=15)), "both were at the same place"


def test_nobody_failed_where_all_finished_or_only_lost_each_other(tmp_path: Path) -> None:
    for error, end in ((None, "finished"), (LOST, "exception"), (None, "interrupted")):
        for rank in range(2):
            ended(tmp_path, rank, 2, error, end)
        assert "FAILED" not in first_text(tmp_path)
    assert first_failure([]) is None


def test_64_ranks_make_a_report_of_25_lines_that_names_the_one_that_failed(tmp_path: Path) -> None:
    for rank in range(64):
        if rank % 8 == 0:
            ended(tmp_path, rank, 64)
        elif rank != 5:
            no_end(tmp_path, rank, 64)
    no_end(tmp_path, 5, 64, phase="data")
    text = first_text(tmp_path)
    assert "RANK 5 OF 64 MOST LIKELY FAILED FIRST, at step 31, data." in text
    assert "The others: 55 left no end, 8 ended by an exception." in text
    wanted = "64 of 64, peaks: host 1.00 to 1.06 GiB, most on rank 19, median 1.03 on 51, least on 0"
    assert wanted in " ".join(text.split())
    assert "on one host, all ranks together: at most 66.0 of 64.0 GiB" in " ".join(text.split())
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= max(80, len(str(tmp_path)) + 30), "only a path makes a line longer"


def test_of_several_ranks_each_number_is_the_worst_and_its_rank_is_named(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        log_of(tmp_path, rank, world_size=4, steps=40 if rank != 3 else 38)
    report = read_run(tmp_path)
    assert_fits(report)
    assert report["host"]["rank"] == 3
    assert report["host"]["rss_peak_bytes"] == 2**30 + 4 * 38 * MIB
    assert report["spread"]["host_peak_bytes"] == {
        "min": 2**30 + 40 * MIB,
        "max": 2**30 + 4 * 38 * MIB,
        "argmax": 3,
        "argmin": 0,
        "median": 2**30 + 2 * 40 * MIB,
        "argmedian": 1,
    }
    assert [row["rank"] for row in report["ranks"]] == [0, 1, 3]
    assert report["missing_ranks"] == [2]
    text = text_of(report)
    shown = "RANKS 3 of 4, peaks: host 1.04 to 1.15 GiB, most on rank 3, median 1.08 on 1, least on 0"
    assert shown in " ".join(text.split())
    assert "no files from rank 2" in text


def test_the_page_of_rank_0_is_pointed_to_whichever_rank_was_worst() -> None:
    reports = [
        report_of("a.py", 5, 1.0, "finished", run={"rank": rank, "world_size": 2}, host={"rss_peak_bytes": GIB})
        for rank in (0, 1)
    ]
    reports[0]["run"]["event_folder"] = "out/runs/a"
    reports[1]["run"]["end"] = "exception"
    whole = merged(reports)
    assert (whole["run"]["rank"], whole["run"]["event_folder"]) == (1, "out/runs/a")
    assert "2 of 2, peaks: host 1.00 GiB each" in text_of(whole)


def test_a_merged_report_has_a_file_of_its_own_that_is_read_first(tmp_path: Path) -> None:
    reports = []
    for rank in (0, 1):
        report = report_of("a.py", 10, 5.0, "finished", run={"rank": rank, "world_size": 2})
        assert written(report, tmp_path).name == f"report.rank{rank}.json"
        reports.append(report)
    whole = read_run(tmp_path)
    assert whole["ranks"][1]["rank"] == 1
    assert written(whole, tmp_path).name == "report.json"
    assert read_run(tmp_path) == whole
    assert merged(reports)["ranks"] == whole["ranks"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40), st.sampled_from(["finished", None, "exception", "killed", "oom", "interrupted"])
        ),
        min_size=2,
        max_size=6,
    )
)
def test_merging_neither_hides_a_failure_nor_a_peak_whatever_the_order(ranks: list[tuple[int, str | None]]) -> None:
    reports = [
        report_of("a.py", 5, 1.0, end, run={"rank": rank, "world_size": len(ranks)}, host={"rss_peak_bytes": size})
        for rank, (size, end) in enumerate(ranks)
    ]
    whole = merged(reports)
    assert whole["host"]["rss_peak_bytes"] == max(size for size, _ in ranks)
    ends = {end for _, end in ranks}
    # An error of its own counts more than an end that nobody has recorded: the launcher kills the others
    worst = next(end for end in ("oom", "exception", "killed", "interrupted", None, "finished") if end in ends)
    assert whole["run"]["end"] == worst
    again = merged(reports[::-1])
    assert (again["host"]["rss_peak_bytes"], again["run"]["end"]) == (whole["host"]["rss_peak_bytes"], worst)
    assert set(report_of("a.py", 1, 1.0, None)) <= set(whole)


def of_rank(rank: int, rate: float, *, named: bool) -> dict[str, Any]:
    report = leaking()
    report["run"] |= {"rank": rank, "world_size": 2}
    report["leak"] |= {"where": "tensors" if named else "host", "bytes_per_step": rate}
    if not named:
        report["leak"]["suspects"] = []
    return report


def test_of_ranks_that_leak_alike_the_one_whose_holder_is_known_is_told() -> None:
    alike = merged([of_rank(0, 1.0e5, named=True), of_rank(1, 1.2e5, named=False)])
    assert (alike["leak"]["rank"], alike["leak"]["suspects"][0]["held_by"]) == (0, "Trainer.kept_logits")
    unlike = merged([of_rank(0, 1.0e4, named=True), of_rank(1, 1.0e6, named=False)])
    assert (unlike["leak"]["rank"], unlike["leak"]["suspects"]) == (1, [])
    text = " ".join(text_of(unlike).split())
    assert "LEAK host memory grows 976.6 KiB a step" in text
    assert "held by not looked for: the run ended first" in text
    innocent = of_rank(0, 0.0, named=False)
    innocent["leak"]["verdict"] = "no leak"
    assert "host memory of rank 1 grows" in text_of(merged([innocent, of_rank(1, 1.0e6, named=False)]))
