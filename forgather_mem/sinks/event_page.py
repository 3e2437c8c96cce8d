"""Writes scalars and texts under a callback's own tags to a run's TensorBoard page."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from forgather_mem.errors import missing
from forgather_mem.formats.event_file import OURS, EventFile, StockWriter, crc32c, tensorboard_writer
from forgather_mem.formats.summaries import HParam, ScalarRecord, hparams_end_payload, hparams_payloads, text_payload

# `output_dir/runs/<time>_<host>/<trial>` is the deepest folder that transformers writes to.
_MAX_DEPTH = 3


def find_event_folder(logging_dir: str | Path | None, output_dir: Path | None, began_s: float) -> str:
    """The folder or its address: the requested one, else the one this process's trainer writes to, else a new one.

    Args:
        logging_dir: The folder that the user requested.
        output_dir: The trainer's; searched for an event file of this host and process.
        began_s: Start time of this training, to distinguish its event file from an earlier one's.
    """
    asked = logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if asked:
        return os.path.expanduser(str(asked))
    found = _folder_of_this_process(output_dir, began_s) if output_dir is not None else None
    if found is not None:
        return str(found)
    name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"  # named as in transformers
    return str((output_dir or Path()) / "runs" / name)


class _Found(NamedTuple):
    made_s: int
    number: int
    folder: Path
    name: str
    ours: bool


def _folder_of_this_process(output_dir: Path, began_s: float) -> Path | None:
    files = list(_files_of_this_process(output_dir))
    others = [file for file in files if not file.ours and not _belongs_to_earlier_training(file, files, began_s)]
    if others:
        return max(others).folder
    open_paths = _open_paths()
    open_ones = [file for file in files if file.ours and os.path.realpath(file.folder / file.name) in open_paths]
    return max(open_ones).folder if open_ones else None


def _open_paths() -> set[str]:
    """The files that this process has open: one of our own among them belongs to the running training."""
    paths = set()
    with missing(OSError):  # no /proc: then two of our writers may have two folders
        for name in os.listdir("/proc/self/fd"):
            with missing(OSError):  # the descriptor used for listing
                paths.add(os.readlink(f"/proc/self/fd/{name}"))
    return paths


def _belongs_to_earlier_training(file: _Found, files: list[_Found], began_s: float) -> bool:
    """A trainer creates a file per training: an earlier one of ours beside it shows that it is old."""
    return any(mine.ours and mine.folder == file.folder and file.made_s <= mine.made_s < int(began_s) for mine in files)


def _files_of_this_process(output_dir: Path) -> Iterator[_Found]:
    pattern = re.compile(rf"tfevents\.(\d+)\.{re.escape(socket.gethostname())}\.{os.getpid()}\.(\d+)")
    todo = [(output_dir, 0)]
    while todo:
        folder, depth = todo.pop()
        with missing(OSError), os.scandir(folder) as entries:  # `os.walk` drops what a signal's handler raises
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    if match := pattern.search(entry.name):
                        yield _Found(int(match[1]), int(match[2]), folder, entry.name, entry.name.startswith(OURS))
                elif depth < _MAX_DEPTH and not entry.name.startswith("checkpoint-"):  # with many files, and no events
                    todo.append((folder / entry.name, depth + 1))


logger = logging.getLogger(__name__)

# Maximum number of tag sets of scalars; beyond it, something is generating names.
_MAX_RECORDS = 64


class EventPage:
    """One run's page, opened at the first write; what can't be written is counted, not raised.

    Args:
        summary_writer: A `SummaryWriter` to write through: not configured and not closed, since it may belong to
            others, but flushed at the end, since nothing else may close it. Without one we create our own file.
        folder: The folder of our own file, or its address.
    """

    def __init__(self, summary_writer: object, folder: str) -> None:
        self._folder = folder
        self._out: EventFile | StockWriter | None = None
        if summary_writer is not None:  # of this process, whoever writes first
            self._out = StockWriter(lambda: summary_writer, self.begin_file, owned=False)
        self._records: dict[tuple[str, ...], ScalarRecord] = {}
        self._hparams = False

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write one record with one number per tag."""
        if not values:
            return
        tags = tuple(values)
        record = self._records.get(tags)
        if record is None:
            if len(self._records) >= _MAX_RECORDS:
                self._records.clear()
            record = self._records[tags] = ScalarRecord(tags, {})
        self.add(record.payload(step, time.time(), values.values(), (1.0,) * len(tags)))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write Markdown for the Text tab."""
        self.add(text_payload(tag, markdown, step, time.time()))

    def hparams(self, hparams: Mapping[str, HParam], metric_tags: Iterable[str]) -> None:
        """Show the run in the HParams tab, with its own tags as metrics."""
        self._hparams = self.add(*hparams_payloads(hparams, metric_tags, time.time()))

    def finished(self) -> None:
        """Mark the run shown by `hparams` as finished."""
        if self._hparams and self.add(hparams_end_payload(time.time())):
            self._hparams = False

    def add(self, *payloads: bytes) -> bool:
        """Write these events; False while none can be written, which is counted."""
        out = self.ready()
        if out is None:
            return False
        for payload in payloads:
            out.add(payload)
        return True

    def close(self) -> None:
        """Close our own file, or flush the writer; the next write opens a new file."""
        if self._out is not None:
            self._out.close()

    def problem(self) -> str | None:
        """What could not be written, for the report; None if everything was."""
        return self._out.problem() if self._out is not None else None

    def ready(self) -> EventFile | StockWriter | None:
        """Where events go; None while none can be written, which is counted."""
        if self._out is None:
            self._out = self._opened()
        return self._out if self._out.ready() else None

    def find_folder(self) -> str:
        """Where a first file of our own is to be."""
        return self._folder

    def begin_file(self) -> None:
        """A new file begins: nothing is in it yet."""

    def _opened(self) -> EventFile | StockWriter:
        """The destination of events where no writer was given: our own file, or TensorBoard's own writer."""
        folder = self.find_folder()
        if "://" in folder:
            logger.warning("%s is remote: TensorBoard's writer is used; a killed run loses up to two minutes", folder)
        elif crc32c() is None:
            logger.warning(
                "google-crc32c has no C implementation here: TensorBoard's own writer is used, which is slower, and a "
                "run that is killed loses up to two minutes"
            )
        else:
            return EventFile(Path(folder), self.begin_file)
        return StockWriter(lambda: tensorboard_writer(folder), self.begin_file, owned=True)


def check_target(owner: str, summary_writer: object, logging_dir: object) -> None:
    """Refuse a writer together with a folder.

    Raises:
        ValueError: naming `owner` and the folder.
    """
    if summary_writer is not None and logging_dir is not None:
        given = f"{owner}(summary_writer=..., logging_dir={str(logging_dir)!r})"
        raise ValueError(f"{given}: the writer has its folder already; give one of the two")
