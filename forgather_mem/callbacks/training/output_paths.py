"""Where callbacks that write for people put a training's pages and logs: its TensorBoard folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forgather_mem.sinks.event_page import EventPage, find_event_folder
from forgather_mem.telemetry.records import Moment, RunInfo

# Stored on the trainer's state, like the run: one folder for all callbacks of a training, and for an evaluation after
# it.
_FOLDER_ATTRIBUTE = "_forgather_mem_events"


def event_folder(moment: Moment, asked: str | Path | None, began_s: float) -> str:
    """The folder, or its address if it is remote; the first call decides for all callbacks without one.

    Args:
        moment: Any event of the training.
        asked: The folder that the user asked for.
        began_s: Time at which we joined the training.
    """
    known: str | None = getattr(moment.state, _FOLDER_ATTRIBUTE, None)
    if asked is None and known is not None:
        return known
    folder = os.path.expanduser(str(asked)) if asked is not None else _find(moment, began_s)
    if known is None:
        setattr(moment.state, _FOLDER_ATTRIBUTE, folder)
    return folder


def _find(moment: Moment, began_s: float) -> str:
    found = find_event_folder(None, moment.run.output_dir, began_s)
    # Forgather's trainer and transformers 4 have a folder among their arguments, possibly still empty.
    of_trainer = getattr(moment.args, "logging_dir", None)
    if of_trainer and not os.environ.get("TENSORBOARD_LOGGING_DIR") and not os.path.isdir(found):
        return os.path.expanduser(str(of_trainer))
    return found


class EventTarget:
    """The output of one callback in one training: the user's writer, or a page of its own.

    Args:
        run: The training, at whose end what is ours is closed, and what is not is flushed.
        summary_writer: The user's, or None.
        logging_dir: The folder for a page of our own, if the user names one.
    """

    def __init__(self, run: RunInfo, summary_writer: object, logging_dir: str | Path | None) -> None:
        self._run = run
        self._summary_writer = summary_writer
        self._logging_dir = logging_dir
        self._began_s = time.time()
        self._page: EventPage | None = None

    def page(self, moment: Moment) -> EventPage:
        """The page of this training."""
        if self._page is None:
            ours = self._summary_writer is None
            folder = event_folder(moment, self._logging_dir, self._began_s) if ours else ""
            self._page = EventPage(self._summary_writer, folder)
            self._run.at_close(self._page.close)
        return self._page
