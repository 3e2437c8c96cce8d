"""When the longest batch of an epoch comes and what it needs, from the lengths of the samples and the steps so far."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import NamedTuple

from forgather_mem.diagnose.alerts.foretold import Foretold, left_in, left_text, tell
from forgather_mem.diagnose.alerts.sample_lengths import RunningLoader, batches_of, cuts, lengths_of
from forgather_mem.diagnose.oom.batch_uses import BatchUses, StepUse
from forgather_mem.diagnose.oom.watch import OutOfMemoryWatch
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.source.bytecode import may_leave_loops
from forgather_mem.source.frame_variables import frame_variables
from forgather_mem.source.source_lines import is_user_file
from forgather_mem.system.allocator import current_allocator
from forgather_mem.system.headroom import Room, device_room, host_rooms
from forgather_mem.telemetry.records import NOTHING, Begins, Moment, RunInfo, Sample
from forgather_mem.units import format_bytes

_PADS = (1, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class LongestLimits:
    """When the longest batch is looked for, and what is trusted. Measured by benchmarks/late_failures.py.

    Attributes:
        first_step: Of those at which it looks; each is twice the one before.
        last_step: The last of them.
        fewest_checked: Steps whose batch was as the lengths say.
        warm_up_steps: In which what is made once counts, too.
        enough_lengths: From so many on there is a line over them.
        enough_steps: Fewer tell nothing.
        least_variety: The largest batch must have this many times the tokens of the smallest.
        of_saved: The peak of a pass, in units of what its forward part saves: as much again while gradients pass
            through it. On seven trainings whose batch was made four times as large it was 6 % too low to 7 % too high.
    """

    first_step: int = 16
    last_step: int = 4096
    fewest_checked: int = 4
    warm_up_steps: int = 2
    enough_lengths: int = 4
    enough_steps: int = 5
    least_variety: float = 1.2
    of_saved: float = 2.0


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
        self._next = _WHEN.first_step if not run.step else 0
        self._shapes: list[_Shape] | None = None  # of all steps; empty where they are not known

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        uses = self._uses
        if self._next == 0 or moment.event != "step_end" or moment.step < self._next:
            return NOTHING
        self._next = 2 * self._next if self._next < _WHEN.last_step else 0
        if self._shapes is None:
            self._shapes = _shapes_of_pass(moment, varies=len({use.length for use in uses.uses}) > 1)
        pad = _padding(self._shapes, uses.uses)
        if moment.step >= len(self._shapes):
            self._next = 0
        elif pad is not None and (found := _look(moment, uses, [shape.padded(pad) for shape in self._shapes])):
            self._next = 0
            tell(moment.run, moment.step, found)
        return NOTHING


class _Shape(NamedTuple):
    """The largest micro-batch of a step."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    def padded(self, multiple: int) -> _Shape:
        return _Shape(self.rows, -(-self.length // multiple) * multiple)


def _look(moment: Moment, uses: BatchUses, shapes: Sequence[_Shape]) -> Foretold | None:
    seen = max(use.rows * (use.length or 1) for use in uses.uses)
    last = getattr(moment.state, "max_steps", 0)
    end = last if last > 0 else len(shapes)
    larger = [(step, shape) for step, shape in enumerate(shapes, 1) if moment.step < step <= end]
    larger = [(step, shape) for step, shape in larger if shape.tokens > seen]
    saved = _saved_by_shape(uses) if larger else None
    room = next(iter(host_rooms()), None) if current_allocator() is None else device_room()
    if room is None or saved is None:
        return None
    return _first_too_large(larger, saved, room, max(use.length or 0 for use in uses.uses))


def _saved_by_shape(uses: BatchUses) -> Callable[[_Shape], float] | None:
    """What a batch of a shape saves for its backward pass, from the steps that were read; None if they are too few, or
    too alike. A token saves as much whatever its row, and for attention something for each token beside it."""
    between, on_device = uses.between_bytes or 0, current_allocator() is not None
    points = []
    for use in uses.uses[_WHEN.warm_up_steps :]:
        saved = use.phases.get("forward", 0) - between if on_device else use.saved_bytes
        if saved is not None and saved > 0:
            points.append((_Shape(use.rows, use.length or 1), saved))
    tokens = [shape.tokens for shape, _ in points]
    if len(points) < _WHEN.enough_steps or max(tokens) < _WHEN.least_variety * min(tokens):
        return None
    each = [(float(shape.length), saved / shape.tokens) for shape, saved in points]
    flat = statistics.median(saved for _, saved in each)
    if len({length for length, _ in each}) >= _WHEN.enough_lengths:
        slope, level = statistics.linear_regression(*zip(*each, strict=True))
        if slope > 0 and level >= 0:
            return lambda shape: (level + slope * shape.length) * shape.tokens
    return lambda shape: flat * shape.tokens


def _first_too_large(
    larger: Sequence[tuple[int, _Shape]], saved: Callable[[_Shape], float], room: Room, longest_seen: int
) -> Foretold | None:
    left = left_in(room)
    for step, shape in larger:
        needed = _WHEN.of_saved * saved(shape)
        if needed > left:
            text = (
                f"the batch of step {step:,} ({shape.rows:,} x {shape.length:,} tokens; the longest so far had "
                f"{longest_seen:,}) needs {format_bytes(needed)}, {left_text(left, room.limit)}: "
                "cut samples (max_length), split or drop the longest, or use smaller batches with more "
                "gradient_accumulation_steps"
            )
            return Foretold(name="longest batch", text=text, needed_bytes=round(needed), left_bytes=left, at_step=step)
    return None


def _shapes_of_pass(moment: Moment, *, varies: bool) -> list[_Shape]:
    """The largest micro-batch of each step of the first epoch, by the lengths of its samples; empty if not known.

    Args:
        moment: The end of one of the first steps.
        varies: Whether the lengths of the batches so far do: else nothing can be told, and little is done for it.
    """
    told = int(getattr(moment.args, "gradient_accumulation_steps", None) or 0)
    for iterator in _running_passes(varies):
        accumulation = told or max(1, iterator._num_yielded // moment.step)  # accelerate's is one batch ahead
        if iterator._num_yielded < moment.step * accumulation or cuts(iterator._collate_fn):
            continue
        column = str(getattr(moment.args, "length_column_name", None) or "length")
        lengths, batches = lengths_of(iterator._dataset, column), batches_of(iterator)
        if lengths is not None and batches is not None:
            whole = [_Shape(len(batch), max(lengths[index] for index in batch)) for batch in batches]
            end = min(len(whole), getattr(moment.args, "_num_batches", len(whole)))
            tokens = [whole[at : at + accumulation] for at in range(0, end, accumulation)]
            return [max(of_step, key=lambda shape: shape.tokens) for of_step in tokens]
    return []


def _running_passes(everywhere: bool) -> list[RunningLoader]:
    """The passes over data loaders that the running functions have in their variables, or in those of a generator.

    If there are none, as in a plain `for` loop, `everywhere` finds those among all objects, in up to 0.1 s; not where a
    running loop of the user's may be left before its data ends.
    """
    loaders, frame = sys.modules.get("torch.utils.data.dataloader"), sys._getframe().f_back
    found: list[RunningLoader] = []
    may_leave = False
    while loaders is not None and frame is not None:
        if is_user_file(frame.f_code.co_filename):
            may_leave = may_leave or may_leave_loops(frame.f_code, frame.f_lasti)
        for value in list(frame_variables(frame).values()):
            inner = value.gi_frame if isinstance(value, GeneratorType) else None
            values = list(frame_variables(inner).values()) if inner is not None else [value]
            found += [one for one in values if issubclass(type(one), loaders._BaseDataLoaderIter)]
        frame = frame.f_back
    if found or loaders is None or not everywhere or may_leave:
        return found
    return list(live_objects(loaders._BaseDataLoaderIter))


def _padding(shapes: Sequence[_Shape], uses: Sequence[StepUse]) -> int | None:
    """The multiple to which all batches so far were padded; None if one of them was not as its samples' lengths say."""
    seen = [(shapes[use.step - 1], (use.rows, use.length)) for use in uses if use.step <= len(shapes) and use.length]
    if len(seen) < _WHEN.fewest_checked:
        return None
    return next((pad for pad in _PADS if all(shape.padded(pad) == used for shape, used in seen)), None)
