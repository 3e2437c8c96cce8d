"""What did a step take, by the shape of its batch? Plain data: who watches a run writes it, advice reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUse:
    """The largest micro-batch of one step, and what was in use then.

    Attributes:
        step: The optimizer step, counted from 1.
        rows: Samples in the micro-batch on this device (the first dimension of its tensors).
        length: Tokens a sample (the second dimension), padding included; None for batches without one.
        phases: Bytes in use by phase ("forward", "backward", "optimizer", "evaluate", ...) of the memory that is
            the scarce one: the allocator's peak where it is read, else what was there at the phase's end.
    """

    step: int
    rows: int
    length: int | None
    phases: Mapping[str, int]
