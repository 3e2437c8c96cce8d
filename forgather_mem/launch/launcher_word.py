"""What a launcher knows of the ends of its ranks: noted when it exits, read by the waiting parent.

torchrun and `accelerate launch` are Python processes, too; the error that ends them holds the exit code of each rank.
"""

from __future__ import annotations

import sys

from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.reporting.ranks import LauncherWord

_FAILED, _ASKED = "ranks failed", "ranks asked"  # kinds of notes
_ELASTIC = "torch.distributed.elastic.multiprocessing."


def note_word(error: BaseException | None) -> None:
    """In a launcher that this error has ended: tell the waiting parent which ranks failed, or who asked it to end."""
    failed = getattr(sys.modules.get(f"{_ELASTIC}errors"), "ChildFailedError", ())
    asked = getattr(sys.modules.get(f"{_ELASTIC}api"), "SignalException", ())
    if isinstance(error, failed):
        exits = (f"{rank}:{one.exitcode}:{one.timestamp}" for rank, one in error.failures.items())
        run_session.note(_FAILED, " ".join(exits))
    elif isinstance(error, asked):
        run_session.note(_ASKED, str(int(error.sigval)))


def word_of(folder: str | None) -> LauncherWord:
    """In the parent: what the launcher that ended last has told."""
    import re

    from forgather_mem.reporting.ranks import LauncherWord

    failed, asked = ((run_session.noted(folder, kind) if folder else [])[-1:] for kind in (_FAILED, _ASKED))
    exits = re.findall(r"\b(\d{1,6}):(-?\d{1,4}):(\d{1,12})\b", "".join(failed))
    signal = int(asked[0]) if asked and asked[0].isdecimal() else None
    return LauncherWord({int(rank): (int(code), int(time_s)) for rank, code, time_s in exits}, signal)
