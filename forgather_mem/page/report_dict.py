"""A report as Python and a notebook are given it: a dict that prints as its text, and shows itself as its page."""

from __future__ import annotations

import os
from typing import Any

from forgather_mem.engine.summary import RunSummary
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_schema import from_dict, to_dict


class Report(dict[str, Any]):
    """Schema 1 as a dict that prints as the text for people.

    Attributes:
        is_shown: Whether it was printed or shown.
    """

    is_shown = False

    @classmethod
    def of(cls, summary: RunSummary) -> Report:
        """The report of a finished run, or of a running one up to now."""
        return cls(to_dict(build_report(summary)))

    @classmethod
    def of_nothing(cls, why: str) -> Report:
        """The report of a training that was not watched: all its numbers are 0, and its text says why."""
        return cls.of(RunSummary(switched_off=[why]))

    def __str__(self) -> str:
        self.is_shown = True
        if self["run"]["end"] and self["run"]["folder"]:
            # Whoever waits for the script need not print it again
            run_session.note(run_session.PRINTED, self["run"]["folder"])
        return report_text(from_dict(RunReport, self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # shown by IPython

    def _repr_html_(self) -> str:
        from forgather_mem.page.data import run_data  # needs numpy
        from forgather_mem.page.html import framed

        folder = self["run"]["folder"]
        return framed([run_data(from_dict(RunReport, self), folder if folder and os.path.isdir(folder) else None)])
