"""How do ranks agree without a collective? Through the key-value store that torch.distributed keeps anyway.

A collective in a callback deadlocks as soon as one rank skips it. Here one rank writes a value, the
others read it, and nobody waits longer than the given time.
"""

from __future__ import annotations

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
