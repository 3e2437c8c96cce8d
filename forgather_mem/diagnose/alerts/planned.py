"""What a Trainer's training will take later, from a plan that is made in a forked child while it goes on."""

from __future__ import annotations

import ctypes
import gc
import itertools
import logging
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

from forgather_mem.diagnose.alerts.alert import Alert, left_in, left_text
from forgather_mem.errors import PlanError, missing, ours
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.headroom import Room, device_room, host_rooms
from forgather_mem.system.own_limits import raise_own_limits
from forgather_mem.system.procfs import own_memory
from forgather_mem.telemetry.records import Moment, RunInfo
from forgather_mem.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    import torch

    from forgather_mem.planning.isolation.child import BegunChild
    from forgather_mem.planning.result import Plan

logger = logging.getLogger(__name__)

_Trainer = Any  # of transformers, which is not imported here
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_PASSING = ("batch", "activations", "results", "temporaries")  # parts of a plan that are not there between two steps


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
        training_bytes: Of a step with the longest rows; 0 where none is known to come.
        evaluation_bytes: Of an evaluation; 0 where there is none, or where less may be enough.
        batch: The longest, for people.
        step: When it comes; None where that is not known.
    """

    training_bytes: int
    evaluation_bytes: int
    batch: str
    step: int | None = None


class PlannedAhead:
    """Has one Trainer's training planned once, and tells what will not fit. Other trainings are not planned.

    On a host the plan is made in a child of lowest priority, if there is memory for what it may copy; on a device it is
    the one that was made before the training, as by `run --plan`.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._next = _WHEN.first_step
        self._since: tuple[int, float] | None = None
        self._child: BegunChild[Outlook] | None = None
        run.at_close(self._end)

    def look(self, moment: Moment, *, has_evaluated: bool) -> list[Alert]:
        """At the end of a step, what will not fit, once. Takes 2 us while nothing is known."""
        since_step, since_s = self._since = self._since or (moment.step, time.monotonic())
        outlook = None
        if self._child is not None:
            outlook = self._answer(0)
        elif self._next and moment.step >= self._next:
            step_s = (time.monotonic() - since_s) / max(1, moment.step - since_step)
            left_s = (getattr(moment.state, "max_steps", 0) - moment.step) * step_s
            outlook = self._begin(moment, left_s)
        if outlook is None:
            return []
        room = next(iter(host_rooms()), None) if current_allocator() is None else device_room()
        return [] if room is None else list(_too_large(outlook, moment, room, has_evaluated))

    def _begin(self, moment: Moment, left_s: float) -> Outlook | None:
        trainer: _Trainer = self._run.trainer()
        self._next *= 2
        if trainer is None or self._run.world_size > 1 or not hasattr(trainer, "callback_handler"):
            self._next = 0
        elif current_allocator() is not None:
            self._next = 0
            return _planned_before(moment, trainer)
        elif _may_be_copied(trainer, _WHEN.budget_frac * left_s - _WHEN.fork_s):
            from forgather_mem.planning.isolation.child import begun_in_a_child

            self._next = 0
            self._child = begun_in_a_child(lambda: _outlook(trainer, moment.step, moment.state.max_steps))
            with missing(OSError), open(f"/proc/{self._child.pid}/oom_score_adj", "w") as score:
                score.write("1000")  # the first to be killed
            return self._answer(_WHEN.patience_s)
        return None

    def _answer(self, within_s: float) -> Outlook | None:
        child = self._child
        if child is None or not child.has_answered(within_s):
            return None
        self._child = None
        try:
            outlook = child()
            logger.debug("planned: %s", outlook)
            return outlook
        except ours(PlanError, ChildProcessError):  # it can't be planned; somebody else has waited for the child
            return None

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _too_large(outlook: Outlook, moment: Moment, room: Room, has_evaluated: bool) -> Iterator[Alert]:
    """What does not fit of what is still to come."""
    left, at_step = left_in(room), outlook.step
    if outlook.training_bytes > left and (at_step is None or at_step > moment.step):
        which = "the longest batch" if at_step is None else f"the batch of step {at_step:,}"
        needed = outlook.training_bytes
        text = (
            f"{which} ({outlook.batch}) needs {format_bytes(needed)}, {left_text(left, room.limit)}: cut samples "
            "(max_length), split or drop the longest, or use smaller batches with more gradient_accumulation_steps"
        )
        yield Alert(name="longest batch", text=text, value=needed, limit=left, full_at_step=at_step)
    at_step = None if has_evaluated else _next_evaluation(moment)
    if outlook.evaluation_bytes > left and at_step is not None:
        needed = outlook.evaluation_bytes
        text = (
            f"the evaluation ({f'step {at_step:,}' if at_step else 'after the epoch'}) needs {format_bytes(needed)} "
            f"with all that it keeps, {left_text(left, room.limit)}: reduce that in preprocess_logits_for_metrics, as "
            "by logits.argmax(-1), set batch_eval_metrics=True, or evaluate fewer samples"
        )
        yield Alert(name="evaluation", text=text, value=needed, limit=left, full_at_step=at_step or None)


def _next_evaluation(moment: Moment) -> int | None:
    """The step after which it will evaluate; 0 at the end of an epoch, None for never."""
    strategy = getattr(moment.args, "eval_strategy", "no")
    strategy = getattr(strategy, "value", strategy)
    if strategy != "steps":
        return 0 if strategy == "epoch" else None
    every = max(1, int(moment.state.eval_steps))
    at_step = (moment.step // every + 1) * every
    return at_step if at_step <= moment.state.max_steps else None


def _planned_before(moment: Moment, trainer: _Trainer) -> Outlook | None:
    """By `forgather_mem.plan(trainer)`; of its longest batch, unless the training ends before or had one as large."""
    known = sys.modules.get("forgather_mem.planning.result")
    plan: Plan | None = known.PLANS.get(trainer) if known is not None else None
    room = device_room()
    if plan is None or room is None:
        return None
    outlook, loader = _of_plan(plan, trainer), trainer.callback_handler.train_dataloader
    comes = isinstance(loader, Sized) and len(loader) <= moment.state.max_steps * plan.accumulation
    return outlook if comes and 2 * room.passing_bytes < outlook.training_bytes else outlook._replace(training_bytes=0)


def _may_be_copied(trainer: _Trainer, within_s: float) -> bool:
    """Whether there is memory, and time, for all pages that may be written here while the child has them, too."""
    unread_bytes = sum(one.untyped_storage().nbytes() for one in _of_unread_values(trainer))
    own_bytes = own_memory().anonymous_bytes
    shared = next((room for room in host_rooms() if "RLIMIT" not in room.limit), None)
    is_room = shared is not None and own_bytes - unread_bytes + _WHEN.own_bytes < shared.free_bytes
    return is_room and own_bytes <= within_s * _WHEN.again_bytes_s


def _of_unread_values(trainer: _Trainer) -> Iterator[torch.Tensor]:
    """The tensors on the host whose values no plan reads."""
    states = getattr(trainer.optimizer, "state", {}).values()
    for one in itertools.chain(trainer.model.parameters(), *(state.values() for state in states)):
        if str(getattr(one, "device", "")) == "cpu":
            yield one


# ---- in the child ----


def _outlook(trainer: _Trainer, step: int, max_steps: int) -> Outlook:
    """Plan it. The trainer can't be used afterwards.

    Raises:
        PlanError: if it can't be planned, or if the plan may be too high.
    """
    library = ctypes.CDLL(None)
    library.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_WHEN.most_s)
    _drop_values(library, trainer)
    os.nice(19)  # from now on: until then the training copies what it writes
    raise_own_limits()  # the training's
    from forgather_mem.planning.batches import Wanted
    from forgather_mem.planning.stand_ins import StandIns
    from forgather_mem.planning.trainer import plan_of_trainer

    longest = _plan_batches_ahead(trainer, step, max_steps)
    answers = StandIns()
    plan = plan_of_trainer(trainer, Wanted(), None, answers)
    if answers.conditions or plan.bound == "at most":
        raise PlanError("less may be enough")
    outlook = _of_plan(plan, trainer)
    return outlook._replace(step=longest) if longest else outlook._replace(training_bytes=0)


def _of_plan(plan: Plan, trainer: _Trainer) -> Outlook:
    rows = {row.phase: row for row in plan.phases if row.step == 2}
    between = sum(size for part, size in rows["data"].parts.items() if part not in _PASSING)
    evaluation = rows.pop("evaluate", None)
    # What is joined is as long as the longest; in a list each has its own length
    is_known = evaluation is not None and getattr(trainer.args, "eval_do_concat_batches", True)
    return Outlook(
        training_bytes=max(row.bytes for row in rows.values()) - between,
        evaluation_bytes=evaluation.bytes - between if evaluation is not None and is_known else 0,
        batch=f"{plan.rows:,} x {plan.length:,} tokens" if plan.length else f"{plan.rows} rows",
    )


def _drop_values(library: ctypes.CDLL, trainer: _Trainer) -> None:
    """Give the memory of weights back, so that whoever else has it need not copy it before it writes there."""
    for tensor in _of_unread_values(trainer):
        storage = tensor.untyped_storage()
        begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        whole_pages = (storage.data_ptr() + storage.nbytes() - begin) // mmap.PAGESIZE
        if whole_pages > 0:
            size = ctypes.c_size_t(whole_pages * mmap.PAGESIZE)
            library.madvise(ctypes.c_void_p(begin), size, mmap.MADV_DONTNEED)


def _plan_batches_ahead(trainer: _Trainer, step: int, max_steps: int) -> int | None:
    """Let batches be those that are still to come in this epoch.

    The child has its own copy of the running sampler, which gives it all of them.

    Returns:
        The step of the largest; None where none is known, or all are alike.
    """
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from forgather_mem.planning.batches import Sizes, largest_of, looked_at, row_length

    dataset: Any = trainer.callback_handler.train_dataloader.dataset
    accumulation: int = trainer.args.gradient_accumulation_steps
    sizes: dict[int, Sizes] = {}
    gc.unfreeze()
    for running in (one for one in gc.get_objects() if issubclass(type(one), _BaseDataLoaderIter)):
        taken: int = getattr(running, "_send_idx", running._num_yielded)
        if running._dataset is dataset and taken >= step * accumulation and hasattr(dataset, "__getitem__"):
            coming = itertools.islice(running._sampler_iter, max_steps * accumulation - taken)
            ahead: list[Any] = list(looked_at(dataset, coming, sizes))
            later = range(min(accumulation, len(ahead) - 1), len(ahead))
            largest = largest_of(ahead, sizes, running._collate_fn, dataset, later) if ahead else None
            if largest is None or len(set(map(row_length, sizes.values()))) == 1:
                return None
            loader = DataLoader(dataset, batch_sampler=ahead, collate_fn=running._collate_fn)
            trainer.get_train_dataloader = itertools.repeat(loader).__next__
            return (taken + largest.largest) // accumulation + 1
    return None
