"""Files whose tests run together in a process that has imported nothing else, or only what most tests do.

For tests that look through the whole heap: pytest's process holds what all tests have imported, three to ten times as
much. A fork of `tests/fresh.py`, which `alone(forked=True)` stands for, has no time in which it imports; what looks at
each object of the heap again and again is faster in a process of its own. The reports of such a file are made once,
whichever of xdist's workers asks first, and replayed test by test.
"""

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh import IN_CHILD, OPTIONS, FreshProcesses

REPORTS = "FORGATHER_MEM_TEST_REPORTS"  # the file for them, to the process that is alone
TIMEOUT_S = 300


class AloneFiles:
    """What has come of them so far in this run of pytest."""

    def __init__(self, processes: FreshProcesses) -> None:
        self._processes = processes
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
                self._run(item, tests, reports)
        with reports.open("rb") as stored:
            found = []
            while stored.peek(1):
                found.append(pickle.load(stored))
        return found

    def _run(self, item: pytest.Item, tests: list[str], reports: Path) -> None:
        written, folder = str(reports.with_suffix(".part")), item.config.rootpath
        marker = item.get_closest_marker("alone")
        if marker is not None and marker.kwargs.get("forked"):
            code, printed = self._processes.run(tests, **{REPORTS: written})
        else:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "pytest", *OPTIONS, *tests], cwd=folder, timeout=TIMEOUT_S, text=True,
                env={**os.environ, IN_CHILD: "1", REPORTS: written}, stdin=subprocess.DEVNULL, capture_output=True,
            )  # fmt: skip
            code, printed = done.returncode, f"{done.stdout}{done.stderr}"
        write(f"exit code {code}\n{printed}", written)
        Path(written).rename(reports)


def is_alone(item: pytest.Item) -> bool:
    """A test marked `fresh` has a process of its own in any file."""
    return item.get_closest_marker("alone") is not None and item.get_closest_marker("fresh") is None


def write(report: pytest.TestReport | str, reports: str) -> None:
    with open(reports, "ab") as file:
        pickle.dump(report, file)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
