"""When the longest batch of an epoch comes and what it needs, from the lengths of the samples and the steps so far."""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from forgather_mem.diagnose.alerts.batches_ahead import Pass, batches_ahead
from forgather_mem.diagnose.alerts.foretold import Foretold, left_text, tell
from forgather_mem.diagnose.alerts.running_loop import running_passes
from forgather_mem.diagnose.oom.batch_uses import BatchUses
from forgather_mem.diagnose.oom.context import StepUse
from forgather_mem.diagnose.oom.shapes.fit import PhaseFit, fit_phase
from forgather_mem.diagnose.oom.shapes.sample_lengths import batches_of, cuts, lengths_of
from forgather_mem.diagnose.oom.watch import OutOfMemoryWatch
from forgather_mem.system.allocator import current_allocator, gauge_now
from forgather_mem.system.headroom import Room, device_room, host_rooms
from forgather_mem.system.native_heap import allocated_natively_bytes, unused_heap_bytes
from forgather_mem.telemetry.records import NOTHING, Begins, Moment, RunInfo, Sample
from forgather_mem.units import format_bytes

_PADS = (1, 8, 16, 32, 64, 128)
_SAMPLED_STEPS = range(5, 16)  # of the run: by then the optimizer has its state


@dataclass(frozen=True, slots=True)
class LongestLimits:
    """When the longest batch is looked for, and what is trusted. Measured by benchmarks/late_failures.py.

    Attributes:
        first_step: Of those at which it looks; each is twice the one before.
        last_step: The last of them.
        fewest_checked: Steps whose batch was as the lengths say.
        most_times: A peak counts up to so many times what is saved of a token.
        gradients_times: A step saves more than so many times the gradients, or they may be its peak.
        waited_frac: Of an epoch, for batches that are made ahead.
        least_waited_s: The least of that.
        most_waited_s: The most of that.
        warm_up_steps: In which what is made once counts, too.
        pause_s: Between two samples of `LivePeak`.
        expensive_s: Where the C library's account takes longer it would hold up the step.
        most_s: Of a step: longer it is not sampled.
    """

    first_step: int = 16
    last_step: int = 4096
    fewest_checked: int = 4
    most_times: float = 2.0
    gradients_times: int = 3
    waited_frac: float = 0.005
    least_waited_s: float = 0.1
    most_waited_s: float = 1.0
    warm_up_steps: int = 2
    pause_s: float = 0.0001
    expensive_s: float = 0.0005
    most_s: float = 60.0


_WHEN = LongestLimits()


class LongestBatch:
    """A work of one training, called at the end of each step.

    Looks after 16, 32, 64, ... steps of the first epoch, as soon as the shapes of the batches so far are those that the
    lengths of their samples give. The order is read from the sampler that is running, which goes on as without us.

    Args:
        watch: The `OutOfMemoryWatch` that knows what the steps so far have used.
    """

    reading = ("longest batch",)

    def __init__(self, run: RunInfo, watch: Begins) -> None:
        begun = run.begun(watch)
        assert isinstance(begun, OutOfMemoryWatch), "else it could not begin"
        self._uses = begun.uses
        self._run = run
        self._next, self._begun, self._begun_s = _WHEN.first_step, run.step, time.monotonic()
        self._peaks: dict[int, int] = {}  # of steps: the most that was in use at once, beyond what was between them
        self._sampling: LivePeak | None = None
        self._device_peak = 0
        self._shapes: list[_Shape | None] | None = None  # of steps; None where it is not known
        self._fit: PhaseFit | None = None
        run.at_close(self._stop)
        run.watch_batches(self._batch_begins)

    def _stop(self) -> None:
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.stop()

    def _batch_begins(self, arguments: object, keywords: object) -> None:
        run = self._run
        if not self._shapes or self._sampling is not None:
            return
        if run.step - self._begun + 1 not in _SAMPLED_STEPS:
            return
        if current_allocator() is None:
            sampling = LivePeak()
            self._sampling = sampling if sampling.start() else None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        uses = self._uses
        if self._next == 0 or moment.event != "step_end":
            return NOTHING
        if self._shapes is None and moment.step - self._begun >= _SAMPLED_STEPS.start - 1:
            varies = len({use.length for use in uses.uses}) > 1
            step_s = (time.monotonic() - self._begun_s) / moment.step
            self._shapes = _shapes_ahead(moment, varies, step_s) if not self._begun else []
        if self._sampling is not None or current_allocator() is not None:
            self._note_peak(moment.step, uses)
        if moment.step >= self._next:
            self._next = 2 * self._next if self._next < _WHEN.last_step else 0
            found = self._look(moment, uses)
            if found is not None:
                self._next = 0
                tell(moment.run, moment.step, found)
        return NOTHING

    def _note_peak(self, step: int, uses: BatchUses) -> None:
        """The peak of this step, where it is known: by samples on the host, on a device where its mark has risen."""
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            peak, between = sampling.stop(), allocated_natively_bytes()
        else:
            peak, between = gauge_now("allocated_bytes", "peak"), uses.between_bytes
            peak, self._device_peak = (peak if (peak or 0) > self._device_peak else None), peak or 0
        if peak is not None and between is not None:
            self._peaks[step] = peak - between

    def _look(self, moment: Moment, uses: BatchUses) -> Foretold | None:
        shapes = self._shapes or []
        pad = _padding(shapes, uses.uses)
        if moment.step >= len(shapes) or pad is None:
            self._next = 0 if not shapes or moment.step >= len(shapes) else self._next
            return None
        seen = max(use.rows * (use.length or 1) for use in uses.uses)
        last = getattr(moment.state, "max_steps", 0)
        ahead = [(step, shape.padded(pad)) for step, shape in enumerate(shapes, 1) if shape and step > moment.step]
        ahead = [(step, shape) for step, shape in ahead if last <= 0 or step <= last]
        larger = [(step, shape) for step, shape in ahead if shape.tokens > seen]
        if not larger:
            return None
        room = next(iter(host_rooms()), None) if current_allocator() is None else device_room()
        self._fit = _saved_by_shape(uses) or self._fit
        if room is None or self._fit is None:
            return None
        parameters: Iterable[Any] = getattr(moment.objects.get("model"), "parameters", tuple)()
        gradient_bytes = sum(one.numel() * one.element_size() for one in parameters if one.requires_grad)
        needs = _Needs.of(self._fit, uses.uses, self._peaks, gradient_bytes)
        return _first_too_large(larger, needs, room, max(use.length or 0 for use in uses.uses))


class _Shape(NamedTuple):
    """The largest micro-batch of a step."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    def padded(self, multiple: int) -> _Shape:
        return _Shape(self.rows, -(-self.length // multiple) * multiple)


class _Needs(NamedTuple):
    """What a batch needs beyond what is in use between two steps.

    Attributes:
        saved: What a forward pass leaves for its backward pass, by shape.
        a_token_bytes: What the peak of a step has on top of that. It goes with the tokens also where what is saved goes
            with their squares: it is the copies and the gradient of the logits.
    """

    saved: PhaseFit
    a_token_bytes: float

    @classmethod
    def of(cls, saved: PhaseFit, uses: Sequence[StepUse], peaks: Mapping[int, int], gradient_bytes: int) -> _Needs:
        """As the peaks of the steps so far tell; at least what is saved.

        A peak may have been missed, but none is too high: the most that any step has had on top counts. Steps of which
        the gradients may be the peak tell nothing.
        """
        read = [_Shape(use.rows, use.length or 1) for use in uses if use.step in peaks]
        tops = [peaks[use.step] for use in uses if use.step in peaks]
        known = [(shape.tokens, top, saved.at(*shape).bytes) for shape, top in zip(read, tops, strict=True)]
        more = [
            (top - least) / tokens for tokens, top, least in known if least > _WHEN.gradients_times * gradient_bytes
        ]
        return cls(saved, min(_WHEN.most_times * saved.per_token_bytes, max([0.0, *more])))

    def at(self, shape: _Shape) -> float:
        return self.a_token_bytes * shape.tokens + self.saved.at(*shape).bytes


def _saved_by_shape(uses: BatchUses) -> PhaseFit | None:
    """From the steps that were read; None if they are too few, or too alike."""
    between, on_device = uses.between_bytes or 0, current_allocator() is not None
    points = []
    for use in uses.uses[_WHEN.warm_up_steps :]:
        saved = use.phases.get("forward", 0) - between if on_device else use.saved_bytes
        if saved is not None and saved > 0:
            points.append((use.rows, use.length, float(saved)))
    return fit_phase("forward", points)


def _first_too_large(
    larger: Sequence[tuple[int, _Shape]], needs: _Needs, room: Room, longest_seen: int
) -> Foretold | None:
    left = room.free_bytes // room.num_ranks + _given_back_bytes(room)
    for step, shape in larger:
        needed = needs.at(shape)
        if needed > left:
            text = (
                f"the batch of step {step:,} ({shape.rows:,} x {shape.length:,} tokens; the longest so far had "
                f"{longest_seen:,}) needs {format_bytes(needed)}, {left_text(round(left), room.limit)}: "
                "cut samples (max_length), split or drop the longest, or use smaller batches with more "
                "gradient_accumulation_steps"
            )
            return Foretold(
                name="longest batch", text=text, needed_bytes=round(needed), left_bytes=round(left), at_step=step
            )
    return None


def _given_back_bytes(room: Room) -> int:
    """What the process has of freed host memory, which the batch would take first."""
    return unused_heap_bytes() if room.where == "host" else 0


def _shapes_ahead(moment: Moment, varies: bool, step_s: float) -> list[_Shape | None]:
    """The largest micro-batch of each step of the first epoch, None where it is not known; empty if nothing is.

    Args:
        moment: The end of one of the first steps.
        varies: Whether the lengths of the batches so far do: else nothing can be told, and little is done for it.
        step_s: What a step has taken so far.
    """
    told = int(getattr(moment.args, "gradient_accumulation_steps", None) or 0)
    for iterator in running_passes(varies):
        accumulation = told or max(1, iterator._num_yielded // moment.step)  # accelerate's is one batch ahead
        if iterator._num_yielded < moment.step * accumulation:
            continue
        whole = _micro_batches(iterator, moment, step_s / accumulation if varies else 0.0)
        steps = range(0, min(len(whole), getattr(moment.args, "_num_batches", len(whole))), accumulation)
        if steps:
            return [_largest(whole[at : at + accumulation]) for at in steps]
    return []


def _micro_batches(iterator: Pass, moment: Moment, batch_s: float) -> Sequence[_Shape | None]:
    """All of this pass, by its own variables where these tell, else by a child that goes on with it.

    Args:
        iterator: The pass.
        moment: Now.
        batch_s: What a batch takes, of which the child may take a part; 0 for no child.
    """
    column = str(getattr(moment.args, "length_column_name", None) or "length")
    lengths = lengths_of(iterator._dataset, column) if not cuts(iterator._collate_fn) else None
    batches = batches_of(iterator) if lengths is not None else None
    if lengths is not None and batches is not None:
        return [_Shape(len(batch), max(lengths[index] for index in batch)) for batch in batches]
    try:
        count = len(cast(Sized, iterator._index_sampler))
    except (TypeError, NotImplementedError):  # of an IterableDataset, or of a sampler of the user's own
        count = 0
    if not batch_s or moment.run.world_size > 1 or 0 < count <= _WHEN.first_step:
        return []
    most_s = min(_WHEN.most_waited_s, max(_WHEN.least_waited_s, _WHEN.waited_frac * count * batch_s))
    ahead = batches_ahead(iterator, lengths, most_s)
    return [None] * ahead.taken + [_Shape(*shape) for shape in ahead.shapes] if ahead is not None else []


def _largest(shapes: Sequence[_Shape | None]) -> _Shape | None:
    """Of the micro-batches of a step, if all are known."""
    known = [shape for shape in shapes if shape is not None]
    return max(known, key=lambda shape: shape.tokens) if len(known) == len(shapes) else None


def _padding(shapes: Sequence[_Shape | None], uses: Sequence[StepUse]) -> int | None:
    """The multiple to which all batches so far were padded; None if one of them was not as its samples' lengths say."""
    known = [(shapes[use.step - 1], (use.rows, use.length)) for use in uses if use.step <= len(shapes) and use.length]
    seen = [(shape, used) for shape, used in known if shape is not None]
    if len(seen) < _WHEN.fewest_checked:
        return None
    for pad in _PADS:
        if all(shape.padded(pad) == used for shape, used in seen):
            return pad
    return None


class LivePeak:
    """The most that is allocated on the host at once, sampled by a thread until it is stopped.

    No mark of the kernel is reset for it, and what was freed does not count.

    The thread is none of `threading.enumerate()`: a script that joins all of those waits for its own.
    """

    def __init__(self) -> None:
        self._is_stopped = False
        self._peak = 0
        self._sampling: _thread.LockType | None = None  # held by the thread, as long as it runs

    def start(self) -> bool:
        """Begin, and say whether it can: not where asking takes long or nobody answers."""
        if allocated_natively_bytes() is None:  # the first call looks for the function
            return False
        began_s = time.thread_time()  # on a busy machine other processes run meanwhile
        allocated_natively_bytes()
        if time.thread_time() - began_s > _WHEN.expensive_s:
            return False
        self._sampling = _thread.allocate_lock()
        self._sampling.acquire()
        _thread.start_new_thread(self._sample, (self._sampling,))
        return True

    def stop(self) -> int | None:
        """The highest sample in bytes, which may have missed the peak; None if there was none. Idempotent."""
        sampling, self._sampling = self._sampling, None
        self._is_stopped = True
        if sampling is not None:
            sampling.acquire()
        return self._peak or None

    def _sample(self, sampling: _thread.LockType) -> None:
        try:
            until_s = time.monotonic() + _WHEN.most_s
            while not self._is_stopped and time.monotonic() < until_s:
                self._peak = max(self._peak, allocated_natively_bytes() or 0)
                time.sleep(_WHEN.pause_s)
        finally:
            sampling.release()
