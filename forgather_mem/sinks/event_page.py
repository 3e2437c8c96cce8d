"""Writes scalars and texts under a callback's own tags to a run's TensorBoard page."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from forgather_mem.errors import missing
from forgather_mem.formats.event_file import EventFile, crc32c
from forgather_mem.formats.stock_writer import StockWriter, tensorboard_writer
from forgather_mem.formats.summaries import (
    HParam,
    ScalarRecord,
    hparams_end_payload,
    hparams_payloads,
    text_payload,
)

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
        self._summary_writer = summary_writer
        self._folder = folder
        self._pid = os.getpid()
        self._out: EventFile | StockWriter | None = None
        self._records: dict[tuple[str, ...], ScalarRecord] = {}
        self._hparams = False

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write one record with one number per tag."""
        out = self._ready() if values else None
        if out is None:
            return
        tags = tuple(values)
        record = self._records.get(tags)
        if record is None:
            if len(self._records) >= _MAX_RECORDS:
                self._records.clear()
            record = self._records[tags] = ScalarRecord(tags, {})
        out.add(record.payload(step, time.time(), values.values(), (1.0,) * len(tags)))

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write Markdown for the Text tab."""
        out = self._ready()
        if out is not None:
            out.add(text_payload(tag, markdown, step, time.time()))

    def hparams(self, hparams: Mapping[str, HParam], metric_tags: Iterable[str]) -> None:
        """Show the run in the HParams tab, with its own tags as metrics."""
        out = self._ready()
        if out is not None:
            self._hparams = True
            for payload in hparams_payloads(hparams, metric_tags, time.time()):
                out.add(payload)

    def finished(self) -> None:
        """Mark the run shown by `hparams` as finished."""
        out = self._ready() if self._hparams else None
        if out is not None:
            out.add(hparams_end_payload(time.time()))
            self._hparams = False

    def close(self) -> None:
        """Close our own file, or flush the writer; the next write opens a new file."""
        if self._out is None:
            return
        self._out.close()
        self._out = None
        if self._summary_writer is not None and os.getpid() == self._pid:  # in a forked child it would wait forever
            with missing(OSError):
                getattr(self._summary_writer, "flush", _nothing)()

    def problem(self) -> str | None:
        """What could not be written, for the report; None if everything was."""
        return self._out.problem() if self._out is not None else None

    def _ready(self) -> EventFile | StockWriter | None:
        if self._out is None:
            self._out = open_events(self._summary_writer, lambda: self._folder, _nothing)
        return self._out if self._out.ready() else None


def _nothing() -> None:
    return None


def open_events(
    summary_writer: object, find_folder: Callable[[], str], begun: Callable[[], None]
) -> EventFile | StockWriter:
    """The destination of events: the given writer, our own file in the folder, or TensorBoard's own writer.

    Args:
        summary_writer: As for `EventPage`.
        find_folder: Called for the folder if there is no writer.
        begun: Called for each new file.
    """
    if summary_writer is not None:
        return StockWriter(lambda: summary_writer, begun, owned=False)
    folder = find_folder()
    if "://" in folder:
        logger.warning(
            "%s is remote: TensorBoard's own writer is used; a run that is killed loses up to two minutes", folder
        )
    elif crc32c() is None:
        logger.warning(
            "google-crc32c has no C implementation here: TensorBoard's own writer is used, which is slower, and a "
            "run that is killed loses up to two minutes"
        )
    else:
        return EventFile(Path(folder), begun)
    return StockWriter(lambda: tensorboard_writer(folder), begun, owned=True)
