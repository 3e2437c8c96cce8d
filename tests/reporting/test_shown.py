"""Each key of the report is read by a text, or listed here: a new one whose line was forgotten has none."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest

from forgather_mem.page.data import run_data
from forgather_mem.reporting.markdown import report_markdown
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report import Extremes, LastError, LeakReport, PlannedPhase, RunReport, Verdict
from forgather_mem.telemetry.report_schema import keys_of
from forgather_mem.units import GIB
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, parsed
from tests.telemetry.test_report_schema import PARTS, filled

# In the terminal's text, which the block of Markdown and the page have, too, but for these
ON_THE_PAGE_ALONE = {
    "DeviceMemory.rank", "HostMemory.rank", "HostMemory.workers_peak_bytes", "LeakReport.rank",
    "Peak.bytes", "Peak.not_read_since", "Peak.rank",
    "PlannedPhase.bytes", "RankRow.device_peak_bytes", "RankRow.device_reserved_bytes", "RankRow.end",
    "RankRow.host_peak_bytes", "RankRow.steps", "Training.rank",
}  # fmt: skip
IN_MARKDOWN_ALONE = {"Training.settings"}
IN_JSON_ALONE = {
    "BackedOff.text", "BackedOff.what", "CacheClears.clears", "CacheClears.freed_bytes", "CacheClears.time_s",
    "Change.binds", "Change.in_script", "Change.interval", "Change.set", "Collector.rank", "DeviceMemory.name",
    "FirstFailure.exit_code", "HostMemory.allocated_end_bytes", "HostMemory.allocated_start_bytes",
    "LeakReport.unexplained_bytes", "LeakSuspect.signature", "OomReport.advice", "OomReport.batch",
    "OomReport.callback", "OomReport.copied_bytes", "OomReport.error_type", "OomReport.kind", "OomReport.line",
    "OomReport.message", "OomReport.others_bytes", "OomReport.reserved_unused_bytes", "OomReport.snapshot",
    "Overhead.backed_off", "Overhead.rank", "Overhead.share_of_run", "RankRow.bytes_per_step", "RankRow.error",
    "RankRow.exit_code", "RankRow.signal", "RunReport.cache", "RunReport.left_out", "RunReport.schema", "Training.host",
}  # fmt: skip
_OF_TEXTS = "/forgather_mem/reporting/", "/forgather_mem/page/", "/telemetry/report.py"


def reports() -> Iterator[RunReport]:
    """In which whatever may be shown is there."""
    yield from (parsed(make()) for make in (all_well, leaking, out_of_memory, killed))
    whole = filled(RunReport)
    apart = Extremes(min=GIB, max=9 * GIB, argmax=2, argmin=0, median=4, argmedian=1)
    forward = replace(whole.planned, phases=(PlannedPhase(phase="forward", bytes=7, parts={"activations": 7}),))
    yield replace(whole, planned=forward, oom=None, killed=None)
    yield whole
    yield RunReport(steps=7, leak=LeakReport(judged=True))
    yield replace(whole, oom=None, spread=replace(whole.spread, host_peak_bytes=apart))
    for ranks in ({}, {"ranks": None, "spread": None, "missing_ranks": None, "first_failure": None}):
        for verdict in get_args(Verdict):
            leak = replace(whole.leak, verdict=verdict)
            for end in ("finished", "exception"):
                run = replace(whole.run, end=end)
                yield replace(whole, run=run, oom=None, killed=None, ledger=(), leak=leak, **ranks)


@pytest.fixture
def read_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[RunReport], Any]], set[str]]:
    """The keys that a text reads of these reports; not what copies all of them."""

    def reading(write: Callable[[RunReport], Any]) -> set[str]:
        read: set[str] = set()

        def noting(part: Any, name: str) -> Any:
            caller = sys._getframe(1).f_code
            if any(one in caller.co_filename for one in _OF_TEXTS) and not caller.co_qualname.startswith("with_texts"):
                read.add(f"{type(part).__name__}.{name}")
            return object.__getattribute__(part, name)

        made = list(reports())
        with monkeypatch.context() as patch:
            for part in PARTS:
                patch.setattr(part, "__getattribute__", noting)
            for report in made:
                write(report)
        return read

    return reading


def test_each_key_is_in_a_text_or_listed_as_in_none(read_by: Any) -> None:
    keys = {f"{part.__name__}.{name}" for part in PARTS if part is not LastError for name in keys_of(part)}
    text, page = keys & read_by(report_text), keys & read_by(lambda report: run_data(report, None))
    markdown = keys & read_by(report_markdown)
    where = "its line is in reporting/text.py and what that calls; of the page alone in page/tables.py"
    assert keys - text - page - markdown == IN_JSON_ALONE, f"{where}; what no text shows is named here"
    assert page - text - markdown == ON_THE_PAGE_ALONE, where
    assert markdown - text - page == IN_MARKDOWN_ALONE, f"{where}; of an issue alone in reporting/markdown.py"
