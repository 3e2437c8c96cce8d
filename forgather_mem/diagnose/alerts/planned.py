"""What a Trainer's training will take later, from a plan that is made in a forked child while it goes on."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from forgather_mem.diagnose.alerts.alert import Alert, emit_alert
from forgather_mem.errors import PlanError, missing
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.headroom import device_room, host_rooms
from forgather_mem.system.memory_limit import raise_own_limits
from forgather_mem.system.native_heap import unused_heap_bytes
from forgather_mem.system.procfs import kib_fields, own_memory, read_once
from forgather_mem.telemetry.records import FORETOLD, NOTHING, Moment, RunInfo, Sample
from forgather_mem.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    import torch

    from forgather_mem.planning.highest import Attempt
    from forgather_mem.planning.isolation.child import BegunChild
    from forgather_mem.planning.result import Plan

_Trainer = Any  # of transformers, which is not imported here
# Parts of a plan that are not there between two steps
_PASSING = "batch", "activations", "graphs of other models", "results", "temporaries"


class AheadLimits(NamedTuple):
    """When a training is planned beside itself. Measured by benchmarks/late_failures.py.

    Attributes:
        first_step: Of those at which it may begin, each twice the one before: until its end the optimizer has no state.
        budget_frac: Of the rest of the training's time, what it may cost the training.
        fork_s: What the fork takes: 27 ms of a process of 0.5 GiB.
        again_bytes_s: How fast a step writes to pages that the child had, too: 0.25 GiB took 0.2 s, copied 0.4 s.
        own_bytes: What the child takes beside what it may copy: 82 MiB with a small model.
        most_s: The child is ended after so long: where all cores are busy it gets 1/70 of one, and may need 18 s of it.
        patience_s: How long the training waits for the answer. None; some in trainings that end before it comes.
    """

    first_step: int = 2
    budget_frac: float = 0.005
    fork_s: float = 0.03
    again_bytes_s: int = GIB
    own_bytes: int = 200 * MIB
    most_s: int = 1800
    patience_s: float = 0.0


_WHEN = AheadLimits()


class Outlook(NamedTuple):
    """What a plan foretells: bytes beyond what there is between two steps.

    Attributes:
        training_bytes: Of a step with the longest rows; 0 where all are alike, or the training ends before they come.
        evaluation_bytes: Of an evaluation; 0 where there is none, or where less may be enough.
        batch: The longest, for people.
    """

    training_bytes: int
    evaluation_bytes: int
    batch: str


class PlannedAhead:
    """A work that has one Trainer's training planned once, and tells what will not fit. Others are not planned.

    The plan is the one that was made before the training, as by `run --plan`. Else it is made on a host in a child of
    lowest priority, if there is memory for what it may copy.
    """

    reading = ("late failures",)  # of two in a training the first tells

    def __init__(self, run: RunInfo) -> None:
        self._run, self._next = run, _WHEN.first_step
        self._since: tuple[int, float] | None = None
        self._child: BegunChild[Outlook] | None = None
        self._has_evaluated = False
        run.at_close(self._end)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        """At the end of a step, what will not fit, once. Takes 2 us while nothing is known."""
        if moment.event != "step_end":
            self._has_evaluated = True
            return NOTHING
        since_step, since_s = self._since = self._since or (moment.step, time.monotonic())
        outlook = None
        if self._child is not None:
            outlook = self._answer(0)
            if not _leaves_room(_WHEN.own_bytes):  # the training needs it
                self._end()
        elif self._next and moment.step >= self._next:
            step_s = (time.monotonic() - since_s) / max(1, moment.step - since_step)
            outlook = self._begin((getattr(moment.state, "max_steps", 0) - moment.step) * step_s)
        for alert in () if outlook is None else _too_large(outlook, moment, self._has_evaluated):
            emit_alert(self._run, alert, what=FORETOLD)
        return NOTHING

    def _begin(self, left_s: float) -> Outlook | None:
        trainer: _Trainer = self._run.trainer()
        known = sys.modules.get("forgather_mem.planning.result")
        before: Plan | None = known.PLANS.get(trainer) if known is not None else None
        self._next *= 2
        if trainer is None or self._run.world_size > 1 or not hasattr(trainer, "callback_handler"):
            self._next = 0
        elif before is not None:
            self._next = 0
            return _of_plan(before, trainer, trainer.callback_handler.train_dataloader)
        elif current_allocator() is None and _may_be_copied(trainer, _WHEN.budget_frac * left_s - _WHEN.fork_s):
            from forgather_mem.planning.isolation.child import begun_in_a_child

            self._next = 0
            self._child = begun_in_a_child(lambda: _outlook(trainer))
            return self._answer(_WHEN.patience_s)
        return None

    def _answer(self, within_s: float) -> Outlook | None:
        child = self._child
        if child is None or not child.has_answered(within_s):
            return None
        self._child = None
        with missing(PlanError, ChildProcessError):  # it can't be planned; somebody else has waited for the child
            return child()
        return None

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _too_large(outlook: Outlook, moment: Moment, has_evaluated: bool) -> Iterator[Alert]:
    """What does not fit of what is still to come."""
    room = next(iter(host_rooms()), None) if current_allocator() is None else device_room()
    if room is None:
        return
    # Its share, and what it has of freed host memory
    left = room.free_bytes // room.num_ranks + (unused_heap_bytes() if room.where == "host" else 0)
    needed = outlook.training_bytes
    at = {"step": moment.step, "rank": moment.run.rank, "limit": left}
    is_left = f"{format_bytes(left)} are left ({room.limit})"
    # A step that has taken half as much had the longest batch
    if needed > left and 2 * room.passing_bytes < needed:
        text = (
            f"the longest batch ({outlook.batch}) needs {format_bytes(needed)}, {is_left}: cut "
            "samples (max_length), split or drop the longest, or use smaller batches with more "
            "gradient_accumulation_steps"
        )
        yield Alert(name="longest batch", text=text, value=needed, **at)
    at_step, needed = None if has_evaluated else _next_evaluation(moment), outlook.evaluation_bytes
    if needed > left and at_step is not None:
        text = (
            f"the evaluation ({f'step {at_step:,}' if at_step else 'after the epoch'}) needs {format_bytes(needed)} "
            f"with all that it keeps, {is_left}: reduce that in preprocess_logits_for_metrics, as "
            "by logits.argmax(-1), set batch_eval_metrics=True, or evaluate fewer samples"
        )
        yield Alert(name="evaluation", text=text, value=needed, full_at_step=at_step or None, **at)


def _next_evaluation(moment: Moment) -> int | None:
    """The step after which it will evaluate; 0 at the end of an epoch, None for never."""
    strategy = getattr(moment.args, "eval_strategy", "no")
    if strategy != "steps":
        return 0 if strategy == "epoch" else None
    every = max(1, int(moment.state.eval_steps))
    at_step = (moment.step // every + 1) * every
    return at_step if at_step <= moment.state.max_steps else None


def _may_be_copied(trainer: _Trainer, within_s: float) -> bool:
    """Whether there is memory, and time, for all pages that may be written here while the child has them, too."""
    unread_bytes = sum(one.untyped_storage().nbytes() for one in _of_unread_values(trainer))
    own_bytes = own_memory().anonymous_bytes
    return own_bytes <= within_s * _WHEN.again_bytes_s and _leaves_room(own_bytes - unread_bytes + _WHEN.own_bytes)


def _leaves_room(own_bytes: int) -> bool:
    """Whether a step can take again the most that this process had, beside so much of a child's."""
    shared = next((room for room in host_rooms() if "RLIMIT" not in room.limit), None)
    memory = kib_fields(read_once("/proc/self/status"))
    own_bytes += memory.get(b"VmHWM", 0) - memory.get(b"VmRSS", 0)
    return shared is not None and own_bytes < shared.free_bytes


def _of_unread_values(trainer: _Trainer) -> Iterator[torch.Tensor]:
    """The tensors on the host whose values no plan reads."""
    states = getattr(trainer.optimizer, "state", {}).values()
    for one in itertools.chain(trainer.model.parameters(), *(state.values() for state in states)):
        if str(getattr(one, "device", "")) == "cpu":
            yield one


# ---- in the child ----


def _outlook(trainer: _Trainer) -> NoReturn:
    """Plan it, and tell the outlook; nothing where it can't be planned, or where the plan may be too high.

    Raises:
        PlanError: if it is of a kind that can't be planned.
        GoesOn: else.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_WHEN.most_s)
    _drop_values(trainer)
    os.nice(19)  # from now on: until then the training copies what it writes
    raise_own_limits()  # the training's
    from forgather_mem.planning.batches import Wanted
    from forgather_mem.planning.stand_ins import StandIns
    from forgather_mem.planning.trainer import plan_of_trainer

    loader = trainer.callback_handler.train_dataloader

    def outlook(made: Attempt) -> Outlook | None:
        if made.plan is None or made.answers.conditions or made.plan.bound == "at most":
            return None
        return _of_plan(made.plan, trainer, loader)

    plan_of_trainer(trainer, Wanted(), None, StandIns(), outlook)


def _of_plan(plan: Plan, trainer: _Trainer, loader: object) -> Outlook:
    rows = {row.phase: row for row in plan.phases if row.step == 2}
    between = sum(size for part, size in rows["data"].parts.items() if part not in _PASSING)
    evaluation = rows.pop("evaluate", None)
    # What is joined is as long as the longest; in a list each has its own length
    is_known = evaluation is not None and getattr(trainer.args, "eval_do_concat_batches", True)
    comes = isinstance(loader, Sized) and len(loader) <= trainer.state.max_steps * plan.accumulation
    return Outlook(
        training_bytes=max(row.bytes for row in rows.values()) - between if comes and plan.lengths_differ else 0,
        evaluation_bytes=evaluation.bytes - between if evaluation is not None and is_known else 0,
        batch=f"{plan.rows:,} x {plan.length:,} tokens" if plan.length else f"{plan.rows} rows",
    )


def _drop_values(trainer: _Trainer) -> None:
    """Give the memory of weights back, so that whoever else has it need not copy it before it writes there."""
    for tensor in _of_unread_values(trainer):
        storage = tensor.untyped_storage()
        begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        num_bytes = (storage.data_ptr() + storage.nbytes() - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        if num_bytes > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED)
