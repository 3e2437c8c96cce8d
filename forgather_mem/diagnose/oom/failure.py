"""The record of one failure: what the error, its traceback and the run have told, filled in as it becomes known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import FREE_HEAP
from forgather_mem.diagnose.oom.memory_in_use import MemoryThen
from forgather_mem.diagnose.oom.messages import Where
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import CallbackFailure, FailedOperation


@dataclass(slots=True, kw_only=True)
class Failure:
    """Plain data, no reference to the error. Unknown values are None.

    Attributes:
        found: What the error says.
        phase: One of `events.PHASES`; empty where nothing shows it.
        step: The current step, or else the last finished one.
        rank: Rank of this process.
        layer: The innermost module whose forward pass was running, by its name in `named_modules`; for the outermost
            one, its class. None outside modules, and where compiled code hides it.
        functions: Names of the functions in the traceback, outermost first.
        callback: The callback in whose event it was raised, if no pass or evaluation ran in that.
        line: The innermost line of the user's own code: "train.py:41".
        in_sample: Whether one sample of a data set was being made.
        after_backward: Whether a function of the user's was behind a line that calls `backward`.
        census: What is held beside parameters, gradients and optimizer state, the largest first.
        operation: What the user's line that failed was doing.
        trained_bytes: Size of the parameters that ask for gradients.
        memory: What was in use and what was left.
        batch: The current micro-batch.
        largest: The largest batch before it; None before the first step has finished.
        largest_bytes: Peak use of that batch.
        is_first: Whether this phase had never finished before.
        predictions: Number of batches that the evaluation had finished.
        steps_done: Number of finished steps of this run.
        in_training: Whether a training was watched, so that its history is known.
        leak: How to fix the leak that has filled memory; None if nothing leaks.
    """

    found: OutOfMemory
    phase: str = ""
    step: int = 0
    rank: int = 0
    layer: str | None = None
    functions: Sequence[str] = ()
    callback: CallbackFailure | None = None
    line: str | None = None
    in_sample: bool = False
    after_backward: bool = False
    census: Sequence[Holding] = ()
    operation: FailedOperation | None = None
    trained_bytes: int = 0
    memory: MemoryThen = field(default_factory=MemoryThen)
    batch: Batch | None = None
    largest: Batch | None = None
    largest_bytes: int | None = None
    is_first: bool = False
    predictions: int | None = None
    steps_done: int = 0
    in_training: bool = False
    leak: str | None = None

    @property
    def where(self) -> Where:
        """Which memory ran out."""
        return self.found.where

    @property
    def requested_bytes(self) -> int | None:
        """The allocation that failed."""
        return self.found.requested_bytes

    @property
    def used_bytes(self) -> int | None:
        """In use at that time, in the same measure as `StepUse.phases`."""
        return self.memory.used_bytes

    @property
    def free_bytes(self) -> int | None:
        """What could still be allocated."""
        return self.memory.free_bytes

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes in use by category."""
        return self.memory.in_use

    @property
    def missing_bytes(self) -> int:
        """What the gradients alone need beyond the capacity, whatever the batch; 0 if they fit or nobody knows."""
        if self.used_bytes is None or self.free_bytes is None or not self.census:
            return 0
        of_batch = sum(self.parts.get(part, 0) for part in ("activations", "the batch", FREE_HEAP))
        missing = self.trained_bytes - self.parts.get("gradients", 0)
        return max(0, missing - of_batch - self.free_bytes)

    @property
    def rows(self) -> int | None:
        """Samples of the current micro-batch."""
        return None if self.batch is None else self.batch.rows

    @property
    def length(self) -> int | None:
        """Tokens of one of them."""
        return None if self.batch is None else self.batch.length
