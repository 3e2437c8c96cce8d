"""A report in Python and in a notebook."""

import html
import json
import re
from pathlib import Path

import pytest

from forgather_mem.page.report_dict import Report
from forgather_mem.telemetry.run_session import FOLDER, PRINTED, make_notes, noted
from tests.reporting.report_fixtures import all_well, leaking


def test_only_the_final_report_counts_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_notes(str(tmp_path))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    for end, folder in ((None, "early"), ("finished", "late"), ("finished", "late"), ("finished", None)):
        report = Report(all_well())
        report["run"] |= {"end": end, "folder": folder}
        assert "forgather-mem" in f"{report}"
    assert noted(str(tmp_path), PRINTED) == ["late"]


def test_a_notebook_shows_the_page_also_where_the_folder_of_the_run_is_gone() -> None:
    shown = Report(leaking())._repr_html_()
    page = html.unescape(re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', shown)[1])
    (run,) = json.loads(re.search(r'id="runs">(.*?)</script>', page)[1])
    assert run["verdict"].startswith("Trainer.kept_logits keeps 3.1 MiB a step")
