"""The files that a loop of one's own writes with `torch.save`, and whether the next of them will have room.

Nothing tells beforehand that a loop will save, and where to: so three new files at equal distances have to be there
before the next is foretold, and the data that is being read has to last until then. Whether older ones will be removed
by then nobody knows either: so only the very next one is.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from forgather_mem.diagnose.alerts.foretold import Foretold, free_disk_bytes, times_text
from forgather_mem.diagnose.alerts.running_loop import names_of_module, running_passes
from forgather_mem.errors import missing
from forgather_mem.system.call_wrapping import without_frames
from forgather_mem.units import format_bytes

_FEWEST = 3
_TAKES_AWAY = {"remove", "unlink", "rmtree", "rename", "move", "rotate"}


class _File(NamedTuple):
    path: str
    step: int
    num_bytes: int


class SavedFiles:
    """Hears of `torch.save` from `begin` to `give_back`.

    Args:
        free_bytes: What is left on the disk of a folder.
    """

    def __init__(self, free_bytes: Callable[[str], int | None] = free_disk_bytes) -> None:
        self._free_bytes = free_bytes
        self._files: list[_File] = []
        self._is_new = False
        self._own: object = None
        self._original: Callable[..., object] | None = None

    def begin(self, step: Callable[[], int]) -> None:
        """From now on files are noted, each with its step."""
        torch: Any = sys.modules["torch"]
        original = self._original = torch.save

        @functools.wraps(original)
        def save(obj: object, f: object, *arguments: object, **keywords: object) -> object:
            path = os.path.abspath(f) if isinstance(f, str | os.PathLike) else None
            is_new = path is not None and not os.path.exists(path)
            try:
                result = original(obj, f, *arguments, **keywords)
            except BaseException as error:
                error.__traceback__ = without_frames(error.__traceback__, __file__)
                raise
            if is_new and self._original is not None:
                with missing(OSError):  # somebody's own `torch.save` has written elsewhere
                    self._files.append(_File(str(path), step(), os.path.getsize(str(path))))
                    self._is_new = True
            return result

        self._own = torch.save = save

    def give_back(self) -> None:
        """As before. Idempotent."""
        torch: Any = sys.modules.get("torch")
        if self._original is not None and torch.save is self._own:
            torch.save = self._original
        self._original = None
        self._files.clear()

    def look(self) -> Foretold | None:
        """When the loop goes on after a file, and has removed what it does not keep: the next, if it will not fit."""
        last = self._files[-_FEWEST:]
        if not self._is_new or len(last) < _FEWEST:
            return None
        self._is_new = False
        every = last[-1].step - last[-2].step
        at_step = last[-1].step + every
        folder, size = os.path.dirname(last[-1].path), max(file.num_bytes for file in last)
        free = self._free_bytes(folder)
        if every < 1 or every != last[-2].step - last[-3].step or free is None or free >= size:
            return None
        if (
            not all(os.path.exists(file.path) for file in last)
            or names_of_module() & _TAKES_AWAY
            or at_step > _last_step(last[-1].step)
        ):
            return None
        text = (
            f"each {times_text(every, 'step')} torch.save writes a new file of {format_bytes(size)} to {folder}, on "
            f"whose disk {format_bytes(free)} are free: that of step {at_step:,} will not fit: remove older files, "
            "save less often, or to another folder"
        )
        return Foretold(name="checkpoint", text=text, needed_bytes=size, left_bytes=free, at_step=at_step)


def _last_step(step: int) -> int:
    """The last step of the first pass over the data; 0 where it is not known, or is over."""
    for one in running_passes(everywhere=True):
        batches_a_step = one._num_yielded // step  # accelerate's is one batch ahead
        if batches_a_step and hasattr(one._dataset, "__len__"):
            return int(len(one) // batches_a_step)
    return 0
