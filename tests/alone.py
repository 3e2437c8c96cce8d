"""Files whose tests run together in a process that has imported nothing else.

For tests that look through the whole heap: pytest's process holds what all tests have imported, three to ten times as
much. The reports of such a file are made once, whichever of xdist's workers asks first, and replayed test by test.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh import IN_CHILD

REPORTS = "FORGATHER_MEM_TEST_REPORTS"  # the file for them, to the process that is alone
TIMEOUT_S = 300
_OPTIONS = ["-q", "--no-header", "-p", "no:xdist", "-p", "no:anyio"]


class AloneFiles:
    """What has come of them so far in this run of pytest."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport | str]] = {}

    def replay(self, item: pytest.Item) -> None:
        """Hand this test's reports to pytest, as if it had just run here."""
        file = _file(item)
        if file not in self._reports:
            self._reports[file] = self._made_once(item, file)
        *reports, printed = self._reports[file]
        its = [report for report in reports if isinstance(report, pytest.TestReport) and report.nodeid == item.nodeid]
        if not its or its[-1].when != "teardown":
            its = [pytest.TestReport(item.nodeid, item.location, {}, "failed", f"its process died\n{printed}", "call")]
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in its:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _made_once(self, item: pytest.Item, file: str) -> list[pytest.TestReport | str]:
        """The reports, and what pytest printed."""
        folder = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        if os.environ.get("PYTEST_XDIST_WORKER"):
            folder = folder.parent  # which the workers share
        reports: Path = folder / f"reports of {file.replace('/', '.')}"
        with reports.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not reports.exists():
                tests = [other.nodeid for other in item.session.items if _file(other) == file and is_alone(other)]
                _run(tests, item.config.rootpath, reports)
        with reports.open("rb") as stored:
            found = []
            while stored.peek(1):
                found.append(pickle.load(stored))
        return found


def is_alone(item: pytest.Item) -> bool:
    """A test marked `fresh` has a process of its own in any file."""
    return item.get_closest_marker("alone") is not None and item.get_closest_marker("fresh") is None


def write(report: pytest.TestReport | str, reports: str) -> None:
    with open(reports, "ab") as file:
        pickle.dump(report, file)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _run(tests: list[str], folder: Path, reports: Path) -> None:
    written = str(reports.with_suffix(".part"))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *_OPTIONS, *tests], cwd=folder, timeout=TIMEOUT_S, text=True,
        env={**os.environ, IN_CHILD: "1", REPORTS: written}, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    write(f"exit code {done.returncode}\n{done.stdout}{done.stderr}", written)
    Path(written).rename(reports)
