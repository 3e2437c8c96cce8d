"""The record of one failure: what the error, its traceback and the run have told, filled in as it becomes known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import FREE_HEAP, WORKERS, RunSettings
from forgather_mem.diagnose.oom.messages import NCCL_SHM
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.engine.settings import EACH_PROMPT
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import CallbackFailure
from forgather_mem.units import MIB

NEEDLESS = "earlier", "untrained", "vain", "copy"  # kinds of what the census finds that no training needs
NOBODY_SAID = OutOfMemory(kind="", where="host", error_type="", message="")


@dataclass(slots=True, kw_only=True)
class Failure:
    """Plain data, no reference to the error. Unknown values are None.

    Attributes:
        found: What the error says.
        settings: Of the run.
        phase: One of `events.PHASES`.
        step: The current step, or else the last finished one.
        rank: Rank of this process.
        layer: The innermost module whose forward pass was running, by its name in `named_modules`; for the outermost
            one, its class. None outside modules, and where compiled code hides it.
        done_frac: At most so much of its forward pass the model had done, by the layer; 1 where nobody knows.
        functions: Names of the functions in the traceback, outermost first.
        line: The innermost line of the user's own code, "train.py:41"; empty where a library works for it.
        ran_out_at: That line whoever works for it, with its code.
        callback: The callback in whose event it was raised, if no pass or evaluation ran in that.
        census: What is held beside parameters, gradients and optimizer state, the largest first.
        trained_bytes: Size of the parameters that ask for gradients.
        used_bytes: In use by this process, in the measure of `HostMeasure` or of the device's allocator.
        free_bytes: What it could allocate after the error.
        freed_bytes: Lower bound of the part that became free only when the failed call was left.
        limit_bytes: The total capacity.
        limit: The source of the limit: "address space (RLIMIT_AS)", "container", "host", "/dev/shm", "GPU 0".
        reserved_unused_bytes: Reserved by the device's allocator but not used by any tensor.
        others_bytes: In use by other processes under the same limit.
        in_use: Memory in use by this process, by category.
        batch: The current micro-batch.
        largest: The largest batch before it; None before the first step has finished.
        is_first: Whether this phase had never finished before.
        steps_done: Number of finished steps of this run.
        in_training: Whether a training was watched, so that its history is known.
        is_planned: Whether a plan tells what is enough.
        generated: What a generation was to return beside the tokens, by the names of arguments.
        each_prompt: The argument by which it has each prompt several times, and how often; empty and 1 if it has not.
        new_tokens: That a generation makes at most; 0 where nobody has told.
        num_workers: Of the data loader that failed, or of a process that was killed.
        keeps_graphs: Whether graphs of passes before the last are kept: so it would be with more, smaller batches.
    """

    found: OutOfMemory = NOBODY_SAID
    settings: RunSettings = field(default_factory=RunSettings)
    phase: str = ""
    step: int = 0
    rank: int = 0
    layer: str | None = None
    done_frac: float = 1.0
    functions: Sequence[str] = ()
    line: str = ""
    ran_out_at: str = ""
    callback: CallbackFailure | None = None
    census: Sequence[Holding] = ()
    trained_bytes: int = 0
    used_bytes: int | None = None
    free_bytes: int | None = None
    freed_bytes: int = 0
    limit_bytes: int | None = None
    limit: str | None = None
    reserved_unused_bytes: int | None = None
    others_bytes: int | None = None
    in_use: Mapping[str, int] = field(default_factory=dict)
    batch: Batch | None = None
    largest: Batch | None = None
    is_first: bool = False
    steps_done: int = 0
    in_training: bool = False
    is_planned: bool = False
    keeps_graphs: bool = False
    generated: str = ""
    each_prompt: tuple[str, int] = ("", 1)
    new_tokens: int = 0
    num_workers: int = 0

    def generates(self, sizes: Mapping[str, int]) -> None:
        """So often each prompt, and so many tokens, by the names of `generate`'s arguments."""
        each = [(name, sizes.get(name, 1)) for name in EACH_PROMPT]
        self.each_prompt = max((self.each_prompt, *each), key=lambda one: one[1])
        self.new_tokens = sizes.get("max_new_tokens", 0)

    @property
    def place(self) -> str:
        """Of `Remedy.where`."""
        if self.callback is None:
            return "/dev/shm" if self.found.kind == NCCL_SHM else self.phase
        if not self.callback.is_users:
            return "library"
        if self.phase == "generate":
            return "generating"
        return "callback" if self.callback.copied_bytes is None else "copy"

    @property
    def rows(self) -> int | None:
        """Of the batch."""
        return None if self.batch is None else self.batch.rows

    @property
    def length(self) -> int | None:
        """Of the batch."""
        return None if self.batch is None else self.batch.length

    @property
    def is_counted(self) -> bool:
        """Whether the census and the model's tensors tell what was in use."""
        return "parameters" in self.in_use

    @property
    def asks_at_once(self) -> bool:
        """Whether this one allocation is as large as half of what was in use."""
        return bool(self.line) and 2 * (self.found.requested_bytes or 0) >= (self.used_bytes or 1)

    @property
    def least_missing_bytes(self) -> int:
        """What the allocation that failed lacked, at least: some of what is free now may not have been so then."""
        return 1 if self.freed_bytes else max(1, (self.found.requested_bytes or 0) - (self.free_bytes or 0))

    @property
    def twice(self) -> Holding | None:
        """Of which another gradient did not fit beside the one that waits for it; None where that was not so."""
        same = (one for one in self.census if one.kind == "due" and one.num_bytes == self.found.requested_bytes)
        is_there = self.phase == "backward" and self.freed_bytes >= (self.found.requested_bytes or 1)
        return next(same, None) if is_there else None

    @property
    def missing_bytes(self) -> int:
        """What the gradients alone need beyond the capacity, whatever the batch; 0 if they fit or nobody knows.

        Without what a variable holds that no training needs.
        """
        if self.used_bytes is None or self.free_bytes is None or not self.census:
            return 0
        of_batch = sum(self.in_use.get(part, 0) for part in ("activations", "the batch", FREE_HEAP))
        needless = sum(held.num_bytes for held in self.census if held.collects or held.kind in NEEDLESS)
        return max(0, self.trained_bytes - self.in_use.get("gradients", 0) - of_batch - needless - self.free_bytes)

    @property
    def to_come_bytes(self) -> float:
        """What the rest of the step asks for beside the allocation that failed, as far as that is known.

        By the layers behind in a forward pass, by gradients in a backward pass; of a copy all of it.
        """
        wanted, copied = self.found.requested_bytes or 0, getattr(self.callback, "copied_bytes", None) or 0
        behind = (self.in_use.get("activations", 0) + wanted) * (1 / self.done_frac - 1)
        gradients = max(0, self.trained_bytes - self.in_use.get("gradients", 0) - wanted) * (self.phase == "backward")
        return behind + gradients + max(0, copied - wanted)

    def is_much(self, held: Holding, of_used: float, of_wanted: float = 1.0) -> bool:
        """Whether this is at least so much of what was in use, and of the allocation that failed."""
        used, wanted = (self.used_bytes or 0) + self.in_use.get(WORKERS, 0), self.found.requested_bytes or 0
        return held.num_bytes >= max(MIB, of_used * used, of_wanted * wanted)
