"""Memory use of one step by the shape of its batch; plain data, written during the run and read by advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUse:
    """The largest micro-batch of one step, and the memory in use then.

    Attributes:
        step: The optimizer step, counted from 1.
        rows: Samples in the micro-batch on this device (the first dimension of its tensors).
        length: Tokens per sample (the second dimension), padding included; None for batches without one.
        phases: Bytes in use of the scarce memory, by phase ("forward", "backward", "optimizer", "evaluate", ...): the
            allocator's peak if it is read, else the use at the phase's end.
    """

    step: int
    rows: int
    length: int | None
    phases: Mapping[str, int]
