"""A report's sizes as a table."""

from dataclasses import replace

from forgather_mem.reporting.table import peaks_sentence, table_lines
from forgather_mem.telemetry.report import Peak
from tests.reporting.report_fixtures import all_well, gib, merged, parsed, report_of


def test_with_several_ranks_the_fullest_device_is_shown() -> None:
    reports = [all_well() for _ in range(2)]
    for rank, report in enumerate(reports):
        report["run"].update({"rank": rank, "world_size": 2})
        report["device"][0]["index"] = rank
    reports[1]["device"][0]["peak_allocated_bytes"] = gib(60)
    fullest, *others = table_lines(parsed(merged(reports)))[1:]
    assert fullest.split() == ["GPU", "1", "used", "9.1", "15.0", "60.0", "79.6"]
    assert [line.split("  ")[1] for line in others] == ["GPU 1 reserved", "host"]


def test_small_sizes_have_two_decimals_and_what_was_not_read_is_left_out() -> None:
    report = report_of("train.py", 9, 1.0, "finished", host={"rss_start_bytes": gib(0.25), "rss_peak_bytes": gib(1.5)})
    assert [line.split() for line in table_lines(parsed(report))[1:]] == [["host", "0.25", "0.00", "1.50"]]
    report["host"]["rss_peak_bytes"] = gib(1536)
    assert table_lines(parsed(report))[1].split() == ["host", "0.2", "0.0", "1,536"], "columns stay apart"
    assert table_lines(parsed(report_of("train.py", 0, 1.0, "finished"))) == ["MEMORY  nothing was measured"]


def test_a_limit_that_counts_something_else_than_the_peak_has_a_line_of_its_own() -> None:
    limit = {"limit_bytes": 520 << 20, "limit_kind": "RLIMIT_DATA", "limit_used_frac": 0.853}
    report = parsed(report_of("train.py", 9, 1.0, "finished", host={"rss_peak_bytes": gib(0.53), **limit}))
    said = "RLIMIT_DATA (data, without mapped files): 520.0 MiB, 85.3 % used at the end"
    assert table_lines(report)[-1] == f"  {said}"
    assert peaks_sentence(replace(report, peaks=(Peak(where="host", bytes=1, step=3, phase="data"),))) == (
        f"Peak 0.53 GiB at step 3, data, {said}."
    )


def test_each_device_of_a_process_has_a_line_and_of_many_the_first() -> None:
    report = all_well()
    first = report["device"][0]
    report["device"] += [{**first, "index": index} for index in range(1, 3)]
    report["peaks"].append({"where": "gpu2", "bytes": gib(40), "step": 7, "phase": "forward"})
    lines = table_lines(parsed(report))[1:]
    labels = ["GPU 0 used", "GPU 0 reserved", "GPU 1 used", "GPU 2 used", "host"]
    assert [line[2:16].strip() for line in lines] == labels
    assert "step 7, forward" in lines[3]
    report["device"] += [{**first, "index": index} for index in range(3, 16)]
    assert table_lines(parsed(report))[-1] == "  and 8 more devices: see the JSON"
