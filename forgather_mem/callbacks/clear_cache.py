"""Which callback gives the device allocator's unused memory back to the driver?"""

from __future__ import annotations

from typing import Literal

from forgather_mem.actions import ClearCache
from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.plan import Rule
from forgather_mem.triggers import Every, check_period


class ClearCacheCallback(RuleCallback):
    """Clears the device cache after every N-th optimizer step or epoch.

    Steps are optimizer steps: gradient accumulation does not multiply the clears, and no clear falls between
    a forward pass and its backward pass. What each clear cost and freed is booked and stands in the record
    of `TBMemoryLogger` and in the report. Without an accelerator there is nothing to clear.

    Args:
        empty_cache_at: "epoch" or "step".
        empty_cache_freq: Every N-th of them: with "step" and 10, after the steps 10, 20, ...
        garbage_collection: Run a full `gc.collect()` before each clear, so that tensors in reference cycles go too.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> ClearCacheCallback(empty_cache_at="batch")
    Traceback (most recent call last):
    ...
    ValueError: ClearCacheCallback(empty_cache_at='batch'): the cache is cleared at 'epoch' or 'step'

    Raises:
        ValueError: for another `empty_cache_at`, or a period that is no whole number of 1 or more.
    """

    def __init__(
        self,
        empty_cache_at: Literal["epoch", "step"] = "epoch",
        empty_cache_freq: int = 1,
        garbage_collection: bool = False,
        *,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        if empty_cache_at not in ("epoch", "step"):
            raise ValueError(
                f"ClearCacheCallback(empty_cache_at={empty_cache_at!r}): the cache is cleared at 'epoch' or 'step'"
            )
        check_period("ClearCacheCallback", "empty_cache_freq", empty_cache_at, empty_cache_freq)
        if not isinstance(garbage_collection, bool):
            raise ValueError(
                f"ClearCacheCallback(garbage_collection={garbage_collection!r}): garbage_collection is true or false"
            )
        if empty_cache_freq is None:
            raise ValueError("ClearCacheCallback(empty_cache_freq=None): give a period of 1 or more")
        self.empty_cache_at = empty_cache_at
        self.empty_cache_freq = empty_cache_freq
        self.garbage_collection = garbage_collection
        by_step = empty_cache_at == "step"
        when = Every(steps=empty_cache_freq) if by_step else Every(epochs=empty_cache_freq)
        do = [ClearCache(garbage_collection=garbage_collection)]
        super().__init__([Rule(when=when, do=do, name="ClearCacheCallback")], enabled=enabled, strict=strict)
