"""How do ranks agree without a collective? Through the key-value store that torch.distributed keeps anyway.

A collective in a callback deadlocks as soon as one rank skips it. Here one rank writes a value, the
others read it, and nobody waits longer than the given time.
"""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from typing import Any

_PREFIX = "forgather_mem/"


def default_store() -> Any | None:
    """The store of the process group, None when torch.distributed is not initialised (or not even imported)."""
    if "torch.distributed" not in sys.modules:
        return None
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    get_store = getattr(c10d, "_get_default_store", None)
    return get_store() if get_store is not None else None


def share_text(key: str, text: str, *, rank: int, wait_s: float = 5.0) -> str:
    """Rank 0's `text` on every rank; this rank's own where there is no store or rank 0 stays silent.

    Args:
        key: Unique for the decision, the same on all ranks.
        text: What this rank would take by itself.
        rank: This process's number.
        wait_s: How long a rank other than 0 waits at most, seconds.
    """
    store = default_store()
    if store is None:
        return text
    if rank == 0:
        store.set(_PREFIX + key, text)
        return text
    try:
        store.wait([_PREFIX + key], timedelta(seconds=wait_s))
    except RuntimeError:  # torch.distributed.DistStoreError: rank 0 has not come here in time
        return text
    return bytes(store.get(_PREFIX + key)).decode()


class Agreement:
    """One text that rank 0 may change and that every rank follows from the same step on.

    Rank 0 proposes "from step N on"; the others look into the store whenever they ask for the current text.
    All ranks must ask at the same steps, at least once between the proposal and N. Nobody waits. With
    several ranks and no store, or one that no longer answers, the text stays as it is.

    >>> agreement = Agreement("period", "10", rank=0, world_size=1)
    >>> agreement.propose("20", from_step=8)
    >>> agreement.at(7), agreement.at(8)
    ('10', '20')

    Args:
        key: The same on all ranks, unique among all agreements of a process.
        text: What holds at first.
        rank: This process's number among `world_size`.
        world_size: How many processes train together.
    """

    def __init__(self, key: str, text: str, *, rank: int, world_size: int) -> None:
        self._key = _PREFIX + key
        self._text = text
        self._rank = rank
        self._world_size = world_size
        self._number = 0
        self._next: tuple[int, str] | None = None

    def propose(self, text: str, from_step: int) -> None:
        """Rank 0 only: from this step on, this text. Ignored while an earlier proposal is pending."""
        if self._rank != 0 or self._next is not None or text == self._text:
            return
        if self._world_size > 1:
            store = default_store()
            if store is None:
                return
            try:
                store.set(f"{self._key}/{self._number}", f"{from_step} {text}")
            except RuntimeError:  # torch.distributed.DistError: the store is gone
                return
        self._next = (from_step, text)

    def at(self, step: int) -> str:
        """What holds at this step."""
        if self._next is None and self._rank != 0:
            with contextlib.suppress(RuntimeError):
                self._next = self._heard()
        if self._next is not None and step >= self._next[0]:
            self._text, self._next = self._next[1], None
            self._number += 1
        return self._text

    def _heard(self) -> tuple[int, str] | None:
        store = default_store()
        key = f"{self._key}/{self._number}"
        if store is None or not store.check([key]):
            return None
        from_step, _, text = bytes(store.get(key)).decode().partition(" ")
        return int(from_step), text
