"""`ClearCacheCallback`: gives the device allocator's unused memory back to the driver."""

from __future__ import annotations

from typing import Literal

from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.errors import check_flags
from forgather_mem.telemetry.records import Begins, Work
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every, Trigger, check_period


class ClearCacheCallback(RuleCallback):
    """Clears the device cache after every Nth optimizer step or epoch.

    Steps are optimizer steps: gradient accumulation does not multiply the clears, and no clear falls between
    a forward pass and its backward pass. The cost and yield of each clear are recorded, in `TBMemoryLogger` and in the
    report. Without an accelerator there is nothing to clear.

    Args:
        empty_cache_at: "epoch" or "step".
        empty_cache_freq: Every Nth of them: with "step" and 10, after steps 10, 20, ...
        garbage_collection: Run a full `gc.collect()` before each clear, so that tensors in reference cycles are freed
            too; also without an accelerator. It is recorded as a collection.
        when: Clear under pressure instead: `Above("device/reserved_frac", 0.92)` clears when that limit is crossed, and
            again only after the value has been below it. Then omit the two above.
        trim_host: Also make the C library release unused host memory, and empty torch's cache of pinned host memory,
            within a budget of 2 % of the time. Works without an accelerator.
        adaptive: Watch the effect of the clears. After two in a row whose memory does not stay free, ever more of them
            are skipped, with one log line that gives the reason: see `Adaptive`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> ClearCacheCallback(empty_cache_at="batch")
    Traceback (most recent call last):
    ...
    ValueError: ClearCacheCallback(empty_cache_at='batch'): the cache is cleared at 'epoch' or 'step'

    Raises:
        ValueError: for another `empty_cache_at`, a period that is not an integer of 1 or more, or `when` as well.
    """

    def __init__(
        self,
        empty_cache_at: Literal["epoch", "step"] = "epoch",
        empty_cache_freq: int = 1,
        garbage_collection: bool = False,
        *,
        when: Trigger | None = None,
        trim_host: bool = False,
        adaptive: bool = False,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        if empty_cache_at not in ("epoch", "step"):
            raise ValueError(
                f"ClearCacheCallback(empty_cache_at={empty_cache_at!r}): the cache is cleared at 'epoch' or 'step'"
            )
        check_period("ClearCacheCallback", "empty_cache_freq", empty_cache_at, empty_cache_freq, needed=True)
        check_flags("ClearCacheCallback", garbage_collection=garbage_collection, trim_host=trim_host, adaptive=adaptive)
        self.empty_cache_at = empty_cache_at
        self.empty_cache_freq = empty_cache_freq
        self.garbage_collection = garbage_collection
        if when is not None and (empty_cache_at, empty_cache_freq) != ("epoch", 1):
            raise ValueError(
                f"ClearCacheCallback(when={when!r}, empty_cache_at={empty_cache_at!r}, empty_cache_freq="
                f"{empty_cache_freq!r}): give either when, or a period by empty_cache_at and empty_cache_freq"
            )
        if when is None:
            by_step = empty_cache_at == "step"
            when = Every(steps=empty_cache_freq) if by_step else Every(epochs=empty_cache_freq)
        # As two actions, so that a collection is recorded as one even where there is no device to clear
        do: list[Work | Begins] = [Collect(), ClearCache()] if garbage_collection else [ClearCache()]
        if trim_host:
            do.append(TrimHost())
        if adaptive:
            do = [Adaptive(action) for action in do]
        super().__init__([Rule(when=when, do=do, name="ClearCacheCallback")], enabled=enabled, strict=strict)
