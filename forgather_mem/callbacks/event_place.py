"""Where do the callbacks that write for people put pages and logs of a training? All into its TensorBoard folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from forgather_mem.sample import Moment
from forgather_mem.sinks.event_folder import find_folder
from forgather_mem.sinks.event_page import EventPage

# Hangs on the trainer's state like the run does: one place for all callbacks of a training, and for an evaluation
# after it.
_FOLDER_ATTRIBUTE = "_forgather_mem_events"


def event_folder(moment: Moment, asked: str | Path | None, began_s: float) -> str:
    """The folder, or its address when it is remote; whoever is asked first decides for all that are not told.

    Args:
        moment: Any event of the training.
        asked: What our user asked for.
        began_s: When we joined the training.
    """
    known: str | None = getattr(moment.state, _FOLDER_ATTRIBUTE, None)
    if asked is None and known is not None:
        return known
    folder = os.path.expanduser(str(asked)) if asked is not None else _find(moment, began_s)
    if known is None:
        setattr(moment.state, _FOLDER_ATTRIBUTE, folder)
    return folder


def _find(moment: Moment, began_s: float) -> str:
    found = find_folder(None, moment.run.output_dir, began_s)
    # Forgather's trainer and transformers 4 have a folder among their arguments; nobody may write there yet.
    of_trainer = getattr(moment.args, "logging_dir", None)
    if of_trainer and not os.environ.get("TENSORBOARD_LOGGING_DIR") and not os.path.isdir(found):
        return os.path.expanduser(str(of_trainer))
    return found


class EventTarget:
    """Where one callback writes: through a user's writer, or into a page of its own for each training.

    Args:
        summary_writer: The user's, or None.
        logging_dir: The folder for a page of our own, when the user names one.
    """

    def __init__(self, summary_writer: Any, logging_dir: str | Path | None) -> None:
        self._summary_writer = summary_writer
        self._logging_dir = logging_dir
        self._began_s = 0.0
        self._page: EventPage | None = None

    def begin(self) -> None:
        """A training begins."""
        self.end()
        self._began_s = time.time()

    def end(self) -> None:
        """It is over: what is ours is closed, what is not is flushed."""
        if self._page is not None:
            self._page.close()
        self._page = None

    def page(self, moment: Moment) -> EventPage:
        """The page of this training."""
        if self._page is None:
            ours = self._summary_writer is None
            folder = event_folder(moment, self._logging_dir, self._began_s) if ours else ""
            self._page = EventPage(self._summary_writer, folder)
        return self._page

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_page": None}
