"""Reports with made-up numbers, for the texts: those of the texts that were promised."""

import json
from pathlib import Path
from typing import Any

import yaml

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.reporting.build import build_report, write_report
from forgather_mem.reporting.ranks import merge_ranks
from forgather_mem.reporting.run_dir import killed_report
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import from_dict, to_dict
from forgather_mem.units import GIB
from tests.json_schema import assert_fits
from tests.sizes import sized


def report_of(script: str, steps: int, wall_s: float, end: str | None, **parts: Any) -> dict[str, Any]:
    """A report with these parts changed; a dict changes only what is in it."""
    summary = RunSummary(RunFacts(RunHeader(script=script), wall_s=wall_s, end=end))
    summary.begin(0)
    summary.last_step = steps
    report = built(summary)
    for key, value in parts.items():
        if isinstance(value, dict) and isinstance(report[key], dict):
            report[key].update(value)
        else:
            report[key] = value
    return report


def built(summary: RunSummary) -> dict[str, Any]:
    """The report as users see it, compared with its schema."""
    report = to_dict(build_report(summary))
    assert_fits(report)
    return report


def parsed(report: dict[str, Any]) -> RunReport:
    """The report as it is read from a file."""
    return from_dict(RunReport, json.loads(json.dumps(report)))


def text_of(report: dict[str, Any], *arguments: Any, **options: Any) -> str:
    return report_text(parsed(report), *arguments, **options)


def written(report: dict[str, Any], folder: Path) -> Path:
    return write_report(parsed(report), folder)


def killed_by(report: dict[str, Any], signal: int) -> dict[str, Any]:
    report = to_dict(killed_report(parsed(report), signal))
    assert_fits(report)
    return report


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    report = to_dict(merge_ranks([parsed(report) for report in reports]))
    assert_fits(report)
    return report


def gib(size: float) -> int:
    return int(size * GIB)


_REPORTS = yaml.safe_load((Path(__file__).parent / "reports.yaml").read_text(encoding="utf-8"))


def _report(name: str) -> dict[str, Any]:
    return report_of("train.py", **sized(_REPORTS[name]))


def all_well() -> dict[str, Any]:
    return _report("all_well")


def leaking() -> dict[str, Any]:
    return _report("leaking")


def out_of_memory() -> dict[str, Any]:
    return _report("out_of_memory")


def killed() -> dict[str, Any]:
    return _report("killed")
