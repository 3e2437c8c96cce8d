"""Reports of several ranks as one."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.reporting.run_dir import read_run
from forgather_mem.units import GIB, MIB
from tests.json_schema import assert_fits
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import leaking, merged, report_of, text_of, written


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
