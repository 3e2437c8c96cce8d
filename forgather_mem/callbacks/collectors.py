"""Callbacks that give memory back at a fixed interval of epochs or steps: collectors, and `ClearCacheCallback`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.errors import check_flags
from forgather_mem.system.allocator import current_allocator
from forgather_mem.telemetry.records import NOTHING, Begins, Moment, RunInfo, Sample, Work
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every, Trigger, check_clears, check_period
from forgather_mem.units import format_bytes

logger = logging.getLogger(__name__)


class _Collector(RuleCallback):
    """Collects at a period, and clears the device's cache if its kind does; with `verbose` it says so."""

    clears: ClassVar[bool] = False

    def __init__(
        self,
        collect_freq_epoch: int | None = 1,
        verbose: bool = False,
        *,
        collect_freq_step: int | None = None,
        when: Trigger | None = None,
        adaptive: bool = False,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        name = type(self).__name__
        check_period(name, "collect_freq_step", "step", collect_freq_step)
        check_period(name, "collect_freq_epoch", "epoch", collect_freq_epoch)
        if collect_freq_epoch is None and collect_freq_step is None:
            raise ValueError(f"{name}(collect_freq_epoch=None): give collect_freq_epoch or collect_freq_step")
        by_step = collect_freq_step is not None
        period = Every(steps=collect_freq_step) if by_step else Every(epochs=collect_freq_epoch)
        if when is not None and (collect_freq_epoch, collect_freq_step) != (1, None):
            raise ValueError(f"{name}(when={when!r}): give either when, or a period by collect_freq_epoch or _step")
        check_flags(name, verbose=verbose, adaptive=adaptive)
        self.collect_freq_epoch = None if by_step or when is not None else collect_freq_epoch
        self.collect_freq_step = collect_freq_step
        self.verbose = verbose
        do: list[Work | Begins] = [Adaptive(Collect())] if adaptive else [Collect()]
        if verbose:
            do = [*([] if adaptive else [_print_start]), *do, _print_collected]
        if self.clears:
            do += [EachRun(_SayWithoutDevice), ClearCache(), *[_print_cleared] * verbose]
        super().__init__([Rule(when=when or period, do=do, name=name)], enabled=enabled, strict=strict)


class SimpleGarbageCollector(_Collector):
    """Runs a full `gc.collect()` at the end of every Nth epoch, or every N optimizer steps.

    It frees what is unreachable in reference cycles. A training without such cycles gains nothing from it, and a
    collection pauses the training by about 0.2 s per million tracked objects; for a collector whose pauses do not grow
    with the heap, see `ScheduledGarbageCollector`.

    Args:
        collect_freq_epoch: Collect at the end of every Nth epoch; a resumed training keeps the interval.
        verbose: Print a line before and after, through the progress bar's writer, on rank 0.
        collect_freq_step: Collect after every Nth optimizer step instead; `collect_freq_epoch` is then None.
        when: Collect at other moments instead: `AtEvent("evaluate", "save", "train_end")`, where a pause does no harm.
        adaptive: After two collections in a row that gave nothing, skip ever more of them: see `Adaptive`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> SimpleGarbageCollector(collect_freq_step=0)
    Traceback (most recent call last):
    ...
    ValueError: SimpleGarbageCollector(collect_freq_step=0): a period is 1 step or more

    Raises:
        ValueError: for a period that is not an integer of 1 or more.
    """


class CudaGarbageCollector(_Collector):
    """Runs a full `gc.collect()` and then gives the device allocator's unused memory back to the driver.

    It supports any accelerator of PyTorch, not only CUDA. Without one it only collects, and says so once. The memory
    goes back to the driver, for other processes and other allocators: this process's own next allocation becomes more
    expensive, not cheaper.

    Args:
        collect_freq_epoch: At the end of every Nth epoch; a resumed training keeps the interval.
        verbose: Print what was done and the allocator's summary, on rank 0.
        collect_freq_step: After every Nth optimizer step instead; `collect_freq_epoch` is then None.
        when, adaptive: As in `SimpleGarbageCollector`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period that is not an integer of 1 or more.
    """

    clears = True


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
        check_clears("ClearCacheCallback", empty_cache_at, empty_cache_freq)
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
        rules = [
            Rule(when=when, do=do, name="ClearCacheCallback"),
            Rule(when=AtEvent("train_begin"), do=[_warn_of_the_trainers_own_clears], name="ClearCacheCallback"),
        ]
        super().__init__(rules, enabled=enabled, strict=strict)


def _print_start(moment: Moment, sample: Sample) -> Mapping[str, float]:
    where = f"step {moment.step}"
    if moment.event == "epoch_end":
        where = f"epoch {math.ceil((moment.epoch or 0.0) - 1e-6)}"
    moment.run.print_line(f"Running garbage collection at end of {where}...")
    return NOTHING


def _print_collected(moment: Moment, sample: Sample) -> Mapping[str, float]:
    values = sample.values
    if "collect/time_s" not in values:  # it has not paid off lately
        return NOTHING
    moment.run.print_line(
        f"Garbage collection finished in {values['collect/time_s']:.3f}s. "
        f"Collected {values['collect/objects']:.0f} objects, freed {format_bytes(values['collect/freed_bytes'])}."
    )
    return NOTHING


def _print_cleared(moment: Moment, sample: Sample) -> Mapping[str, float]:
    values = sample.values
    if "cache/time_s" not in values:  # no accelerator
        return NOTHING
    moment.run.print_line(
        f"Device cache cleared in {values['cache/time_s']:.3f}s, freed {format_bytes(values['cache/freed_bytes'])}."
    )
    allocator = current_allocator()
    if allocator is not None and allocator.summary is not None:
        moment.run.print_line(f"Memory stats after clearing:\n{allocator.summary()}")
    return NOTHING


class _SayWithoutDevice:
    """Prints once in a training that there is no device cache to clear."""

    def __init__(self, run: RunInfo) -> None:
        self._said = False

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if not self._said and current_allocator() is None:
            self._said = True
            moment.run.print_line("CudaGarbageCollector: no accelerator, so no device cache; it only collects.")
        return NOTHING


def _warn_of_the_trainers_own_clears(moment: Moment, sample: Sample) -> Mapping[str, float]:
    if steps := getattr(moment.args, "torch_empty_cache_steps", None):
        logger.warning(
            "the Trainer clears the device cache itself (torch_empty_cache_steps=%s), on every micro-batch of such a "
            "step and before its backward pass; unset it, ClearCacheCallback clears after the step",
            steps,
        )
    return NOTHING
