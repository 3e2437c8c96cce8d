"""Writes samples to a log that survives a crash, one file per rank."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from forgather_mem.errors import ours
from forgather_mem.formats.append import AppendFile
from forgather_mem.formats.jsonl import finding_line, header_line, is_torn, roll_up_line, rotate, sample_line
from forgather_mem.telemetry.records import Finding, RunInfo, Sample
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.units import MIB

logger = logging.getLogger(__name__)

ROLL_UP_RECORDS = 4096  # it takes 2 ms to write and 20 KiB, and 0.1 s to read so many


class JsonlSink:
    """Writes each sample and finding as one line of JSON with one `write(2)`; every rank has its own file.

    A killed run keeps every line; see `AppendFile` for full and slow disks. After every 4,096 records a line tells what
    came of them so far, so that the report of a killed run is read from the last one. Read the file with
    `formats.jsonl.LogReader`, `pandas.read_json(path, lines=True)` or `jq`.

    Args:
        path: The file; other ranks than 0 put `.rank{r}` before its suffix. An existing file is continued.
            Default: `memory.rank{r}.jsonl` in the run's folder, `<output_dir>/forgather_mem/<time>`.
        max_bytes: A file that reaches this size is renamed to `<name>.1` and a new one started.
        keep: Number of renamed files to keep. With the defaults a rank's log takes at most 256 MiB, which is about
            400,000 records of 20 numbers.

    Raises:
        ValueError: for a path that does not end in .jsonl or .json (a template's author may be a stranger, and
            the file is appended to and renamed), `max_bytes` below 4096 or a negative `keep`.
    """

    def __init__(self, path: str | Path | None = None, *, max_bytes: int = 64 * MIB, keep: int = 3) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ValueError(f"JsonlSink(path={path!r}): give a file's name")
        if path is not None and Path(path).suffix not in (".jsonl", ".json"):
            raise ValueError(f"JsonlSink(path={str(path)!r}): the file's name ends in .jsonl or .json")
        if max_bytes < 4096:
            raise ValueError(f"JsonlSink(max_bytes={max_bytes}): a file holds 4096 bytes or more")
        if keep < 0:
            raise ValueError(f"JsonlSink(keep={keep}): keep 0 renamed files or more")
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.key = "jsonl", str(path)  # equal for two sinks that would write the same file
        self._log: _Log | None = None

    @property
    def file(self) -> Path | None:
        """The file of this run; None before the first record, or if there is no folder for one."""
        return self._log.path if self._log is not None else None

    def begin(self, run: RunInfo) -> None:
        """A training begins."""
        self.end(run)
        self._log = _Log(self, run)

    def write(self, sample: Sample) -> None:
        """Write one line, or count it as dropped. Nothing is written outside of a training."""
        self._put(lambda log: log.write(sample))

    def tell(self, finding: Finding) -> None:
        """Write the finding as a line."""
        self._put(lambda log: log.out.append(finding_line(finding)))

    def _put(self, put: Callable[[_Log], object]) -> None:
        log = self._log
        if log is not None:
            with log.lock:
                if log.ready():
                    put(log)

    def end(self, run: RunInfo) -> None:
        """The training is over: close the file."""
        if self._log is not None:
            self._log.close()

    def problems(self) -> str | None:
        """What could not be written, for the report; None if everything was."""
        problem = self._log.problem() if self._log is not None else None
        return f"JSONL: {problem}" if problem else None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_log": None}  # an open file belongs to this process


class _Log:
    """One run's file while it is being written.

    Attributes:
        lock: Held while something is written: a record may come from any thread.
    """

    def __init__(self, sink: JsonlSink, run: RunInfo) -> None:
        self.lock = threading.RLock()  # a signal's handler may close the run in the middle of a write
        self._sink = sink
        self._run: RunInfo | None = run  # until it is closed
        self._rank = run.rank
        self._no_place = False
        self._rotate_at = sink.max_bytes
        self._num_records = 0
        self._header = RunHeader(pid=os.getpid())  # the last that was written
        self.path: Path | None = None
        self.out = AppendFile(self._open_next, always_new=False)

    def ready(self) -> bool:
        if self._run is None or (self.path is None and not self._find_place(self._run)):
            return False
        if self.out.end >= self._rotate_at:
            self._rotate()
        return self.out.ready()

    def write(self, sample: Sample) -> None:
        """Write one record, and what came of all so far when it is due."""
        is_there = self.out.append(sample_line(sample))
        self._num_records += 1
        if not is_there or self._run is None:
            return
        if self._num_records == 1 and self._run.header != self._header:  # by now it is known where other sinks write
            self.out.append(self._header_line(), num_records=0)
        if not self._num_records % ROLL_UP_RECORDS:
            self.out.append(roll_up_line(self._rank, self._run.header.plain(), self._run.so_far()), num_records=0)

    def close(self) -> None:
        self._run = None
        self.out.close()

    def problem(self) -> str | None:
        if self._no_place:
            return "nothing was written: there is no output folder; give JsonlSink(path=...) or set FORGATHER_MEM_DIR"
        return self.out.problem()

    def _find_place(self, run: RunInfo) -> bool:
        if self._sink.path is not None:
            path = Path(os.path.realpath(Path(self._sink.path).expanduser()))
            self.path = path.with_name(f"{path.stem}.rank{self._rank}{path.suffix}") if self._rank else path
        elif run.folder is not None:
            self.path = run.folder / f"memory.rank{self._rank}.jsonl"
        else:
            self._no_place, self._run = True, None
        return self.path is not None

    def _open_next(self) -> tuple[Path, bytes]:
        assert self.path is not None, "ready() finds it before it opens"
        header = self._header_line()
        return self.path, b"\n" + header if is_torn(self.path) else header

    def _header_line(self) -> bytes:
        if self._run is not None:
            self._header = self._run.header
        return header_line(self._rank, self._header.plain())

    def _rotate(self) -> None:
        assert self.path is not None, "what has grown has a path"
        self.out.close()
        self._rotate_at = self._sink.max_bytes
        try:
            rotate(self.path, self._sink.keep)
        except ours(OSError) as error:
            logger.warning("can't rename %s: %s; logging continues in the same file", self.path, error.strerror)
            self._rotate_at += self.out.end
