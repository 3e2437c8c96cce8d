"""Whether `FORGATHER_MEM` in the environment switches everything off, for all but the waiting parent."""

from __future__ import annotations

import functools
import logging
import os

from forgather_mem.telemetry import run_session

logger = logging.getLogger(__name__)


def is_switched_off() -> bool:
    """As `run_session.is_off`; a value that is neither on nor off is named once, by rank 0 of the first process."""
    unknown = run_session.unknown_switch()
    if unknown is not None and run_session.FOLDER not in os.environ and run_session.rank_and_size()[0] == 0:
        _name(unknown)
    return run_session.is_off()


def why_off() -> str:
    """The end of a sentence that says why nothing is watched; only where `is_switched_off()`."""
    return f"it is switched off by {run_session.SWITCH}={os.environ[run_session.SWITCH]} in the environment"


@functools.cache
def _name(sentence: str) -> None:
    logger.warning("%s", sentence)
