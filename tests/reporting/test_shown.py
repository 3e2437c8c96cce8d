"""Each key of the report is read by a text, or listed in shown.yaml: a new one whose line was forgotten has none."""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from forgather_mem.page.data import run_data
from forgather_mem.reporting.markdown import report_markdown
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report import Extremes, LastError, LeakReport, RunReport, Verdict
from forgather_mem.telemetry.report_schema import keys_of
from forgather_mem.units import GIB
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, parsed
from tests.telemetry.test_report_schema import PARTS, filled

LISTED = yaml.safe_load((Path(__file__).parent / "shown.yaml").read_text(encoding="utf-8"))
KEYS = {f"{part.__name__}.{name}" for part in PARTS if part is not LastError for name in keys_of(part)}
_OF_TEXTS = "/forgather_mem/reporting/", "/forgather_mem/page/", "/telemetry/report.py"


def reports() -> Iterator[RunReport]:
    """In which whatever may be shown is there."""
    yield from (parsed(make()) for make in (all_well, leaking, out_of_memory, killed))
    whole = filled(RunReport)
    apart = Extremes(min=GIB, max=9 * GIB, argmax=2, argmin=0, median=4, argmedian=1)
    yield replace(whole, oom=None, killed=None)
    yield whole
    yield RunReport(steps=7, leak=LeakReport(judged=True))
    yield replace(whole, oom=None, spread=replace(whole.spread, host_peak_bytes=apart))
    alone = {"ranks": None, "spread": None, "missing_ranks": None, "first_failure": None}
    for ranks, verdict, end in itertools.product(({}, alone), get_args(Verdict), ("finished", "exception")):
        run, leak = replace(whole.run, end=end), replace(whole.leak, verdict=verdict)
        yield replace(whole, run=run, oom=None, killed=None, ledger=(), leak=leak, **ranks)


def read_by(write: Callable[[RunReport], Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that a text reads of these reports; not what copies all of them."""
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
    return read & KEYS


def test_each_key_is_in_a_text_or_listed_as_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text, markdown = read_by(report_text, monkeypatch), read_by(report_markdown, monkeypatch)
    page = read_by(lambda report: run_data(report, None), monkeypatch)
    found = {"on the page alone": page - text - markdown, "in Markdown alone": markdown - text - page}
    found["in JSON alone"] = KEYS - text - page - markdown
    assert found == {where: set(listed.split()) for where, listed in LISTED.items()}, (
        "its line is in reporting/text.py and what that calls, of the page in page/tables.py; others are in shown.yaml"
    )
