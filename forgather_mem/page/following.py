"""The runs of a folder as data of the page, up to date while they are being written."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from forgather_mem.errors import ForgatherMemError, escape_controls, shown
from forgather_mem.page.data import Json, run_data
from forgather_mem.page.tables import in_short
from forgather_mem.reporting.build import FILE_NAME
from forgather_mem.reporting.run_dir import find_runs, run_report
from forgather_mem.telemetry.report_schema import read_report


@dataclass(frozen=True, slots=True)
class FollowingPace:
    """How often a run that goes on is looked at, and how much of it. Seconds are of the clock.

    Attributes:
        core_frac: Of one core: reading a long run takes a second and more, and the training may need both.
        least_s: Between two looks.
        most_runs: Of a folder.
    """

    core_frac: float = 0.04
    least_s: float = 1.0
    most_runs: int = 200


_PACE = FollowingPace()


class FollowedRuns:
    """All runs in and below a folder, by numbers that stay theirs.

    Raises:
        NoRun: if there is none.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(os.path.expanduser(folder))
        self._lock = threading.Lock()
        self._numbers: dict[Path, int] = {}
        self._followed: WeakValueDictionary[int, FollowedRun] = WeakValueDictionary()  # while somebody looks
        self._places = find_runs(self._folder)[: _PACE.most_runs]

    def listed(self) -> list[Json]:
        """Number and name of each run, the newest first, and of those that have ended script, verdict and peak."""
        with self._lock:
            with contextlib.suppress(ForgatherMemError, OSError):
                self._places = find_runs(self._folder)[: _PACE.most_runs]
            return [
                {
                    "id": self._numbers.setdefault(place, len(self._numbers)),
                    "name": self._name(place),
                    "about": self._about(place),
                }
                for place in self._places
            ]

    def run(self, number: int) -> FollowedRun | None:
        """The run with this number; None for a number that was not given to any."""
        with self._lock:
            place = next((place for place, its in self._numbers.items() if its == number), None)
            if place is None:
                return None
            return self._followed.setdefault(number, FollowedRun(place, self._name(place)))

    def _about(self, place: Path) -> str:
        report, _ = read_report(place / FILE_NAME)
        return "" if report is None else escape_controls(in_short(report))

    def _name(self, place: Path) -> str:
        name = os.path.relpath(place, self._folder)
        return escape_controls(place.absolute().name if name == "." else name)


class FollowedRun:
    """One run, which is read anew at each look."""

    def __init__(self, place: Path, name: str) -> None:
        self._place, self._name = place, name
        self._lock = threading.Lock()
        self._data, self._version, self._due_s = b"", 0, 0.0

    def latest(self) -> tuple[int, bytes]:
        """The number of changes so far, and the data as one line of JSON, at most a second older than the files.

        It is older in a long run: reading it and making it takes no more than 4 % of one core.
        """
        with self._lock:
            if time.monotonic() < self._due_s:
                return self._version, self._data
            begun_s = time.thread_time()
            data = self._made()
            self._due_s = time.monotonic() + max(_PACE.least_s, (time.thread_time() - begun_s) / _PACE.core_frac)
            if data != self._data:
                self._version, self._data = self._version + 1, data
            return self._version, self._data

    def _made(self) -> bytes:
        try:
            data = run_data(run_report(self._place), self._place, self._name)
        except (ForgatherMemError, OSError) as error:
            data = {"error": shown(str(error))}
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
