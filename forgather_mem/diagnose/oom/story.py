"""Why memory ran out at that moment, and what was not the reason: the report's `oom` and its sentence."""

from __future__ import annotations

from dataclasses import dataclass, field

from forgather_mem.diagnose.oom.memory_in_use import MemoryThen
from forgather_mem.diagnose.oom.messages import NCCL_SHM, PINNED
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.diagnose.oom.shapes.batch_shapes import GRAPH, Batch
from forgather_mem.heap.failed_callback import CallbackFailure
from forgather_mem.heap.failed_lines import FailedOperation
from forgather_mem.heap.failed_variables import HeldVariable
from forgather_mem.system.own_limits import Bound
from forgather_mem.telemetry.report import NOT_JUDGED, LeakReport, OomReport
from forgather_mem.units import MIB, by_sides, format_bytes

# What is usual: a device to oneself, a machine with others on it.
_NEIGHBOUR_FRAC = {"device": 0.1, "host": 0.5}
_OF_WHAT = {"device": "device", "host": "memory"}
_LEAK_FRAC = 0.1
_OF_KIND = {
    "killed worker": "a data worker was killed, most likely by the kernel, for memory.",
    NCCL_SHM: "/dev/shm is full; NCCL passes data between the GPUs of a machine through it (docker: --shm-size).",
    PINNED: "page-locked memory, which is the host's, not the device's, could not be had.",
    "shared memory": "/dev/shm is full; data workers pass batches through it (docker: --shm-size).",
}
_FIRST = {
    "evaluate": "the first evaluation",
    "save": "the first checkpoint",
    "generate": "the first generation",
    "resume": "a checkpoint was being loaded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is known about a failure; plain data.

    Attributes:
        found: What the error says.
        phase: One of `events.PHASES`.
        step: The current step, or else the last finished one.
        rank: Rank of this process.
        layer: The module whose forward pass was running.
        functions: Names of the functions in the traceback, outermost first.
        callback: The callback that failed by itself.
        line: The innermost line of the user's own code.
        in_sample, stays_in_batch: As in `Place`.
        variables: What the variables of the user's functions held, the largest first.
        operation: What the user's line that failed was doing.
        memory: What was in use and what was left.
        batch: The current micro-batch.
        times_ahead: As in `FailureContext`.
        live_bytes, part_done: Likewise.
        largest: The largest batch before it; None before the first step has finished.
        largest_bytes: Peak use of that batch.
        is_first: Whether this phase had never finished before.
        predictions: Number of batches that the evaluation had finished.
        steps_done: Number of finished steps of this run.
        in_training: Whether a training was watched, so that its history is known.
        untold: Why nobody has looked for the reason; None if somebody has.
    """

    found: OutOfMemory
    phase: str
    step: int = 0
    rank: int = 0
    layer: str | None = None
    functions: tuple[str, ...] = ()
    callback: CallbackFailure | None = None
    line: str | None = None
    in_sample: bool = False
    stays_in_batch: bool = False
    variables: tuple[HeldVariable, ...] = ()
    operation: FailedOperation | None = None
    memory: MemoryThen = field(default_factory=MemoryThen)
    batch: Batch | None = None
    times_ahead: float | None = None
    live_bytes: int | None = None
    part_done: float | None = None
    largest: Batch | None = None
    largest_bytes: int | None = None
    is_first: bool = False
    predictions: int | None = None
    steps_done: int = 0
    in_training: bool = False
    untold: str | None = None


def untold(found: OutOfMemory, limit: Bound) -> Story:
    """The story without an examination, where memory is so short that examining it could end the process."""
    on_host = MemoryThen(free_bytes=limit.free_bytes, limit_bytes=limit.limit_bytes, limit=limit.name)
    left = f"{format_bytes(limit.free_bytes)} were left below a limit at which the kernel kills ({limit.name})"
    return Story(
        found=found,
        phase="other",
        memory=on_host if found.where == "host" else MemoryThen(free_bytes=found.free_bytes),
        untold=f"not looked into: {left}.",
    )


def sentence(story: Story) -> str:
    """One line for a log."""
    where = f", in {story.layer}" if story.layer else ""
    return f"out of memory in {story.phase}{where}: {story.found}"


def oom_of(story: Story, leak: LeakReport = NOT_JUDGED) -> OomReport:
    """The report's `oom`, without advice.

    Args:
        story: What is known.
        leak: The verdict about leaks.
    """
    found, memory = story.found, story.memory
    return OomReport(
        where=found.where,
        step=story.step,
        phase=story.phase,
        rank=story.rank,
        layer=story.layer if story.phase not in ("data", "save", "resume", "startup") else None,
        requested_bytes=found.requested_bytes,
        free_bytes=None if memory.freed_bytes else memory.free_bytes,
        limit_bytes=memory.limit_bytes,
        limit=memory.limit,
        reserved_unused_bytes=memory.reserved_unused_bytes,
        others_bytes=memory.others_bytes,
        in_use=_in_use(story, leak),
        batch=None if story.batch is None else story.batch.named,
        why_now=why_now(story, leak),
        not_because=tuple(not_because(story, leak)),
        kind=found.kind,
        error_type=found.error_type,
        message=found.message,
        callback=None if story.callback is None else story.callback.callback,
        line=None if story.callback is None else story.callback.line,
        copied_bytes=None if story.callback is None else story.callback.copied_bytes,
    )


def why_now(story: Story, leak: LeakReport) -> str | None:
    """The reason that best explains why memory did not run out earlier; None if unknown."""
    if story.untold is not None:
        return story.untold
    if _is_leak(story, leak):
        grows = f"a leak: {format_bytes(leak.bytes_per_step)} a step since step {leak.since_step:,}"
        held = next((suspect.held_by for suspect in leak.suspects if suspect.held_by), None)
        return f"{grows}, held by {held}." if held else f"{grows}."
    if story.found.kind in _OF_KIND:
        return _OF_KIND[story.found.kind]
    if story.callback is not None:
        return _of_callback(story.callback)
    others, limit = story.memory.others_bytes, story.memory.limit_bytes
    if others and limit and others > _NEIGHBOUR_FRAC[story.found.where] * limit:
        return f"other processes have {format_bytes(others)} of this {_OF_WHAT[story.found.where]}."
    if story.phase in ("forward", "backward"):
        return _of_batch(story)
    if story.phase == "optimizer" and story.is_first:
        return _first_optimizer_step(story)
    if story.phase == "startup":
        return "before the first step: it does not fit even without a batch." if story.in_training else None
    if story.phase in _FIRST and (story.is_first or story.phase == "resume") and story.in_training:
        done = story.predictions if story.phase == "evaluate" else None
        return _FIRST[story.phase] + (f", in its batch {done + 1:,}." if done is not None else ".")
    return None


def not_because(story: Story, leak: LeakReport) -> list[str]:
    """Usual suspicions that can be ruled out."""
    reasons = []
    if leak.verdict == "no leak":
        reasons.append(f"Not a leak (under {format_bytes(leak.bytes_per_step_high)} a step)")
    unused, wanted = story.memory.reserved_unused_bytes, story.found.requested_bytes
    if story.found.where == "device" and unused is not None and unused < (wanted or 256 * MIB):
        reasons.append(f"Not fragmentation ({format_bytes(unused)} kept unused)")
    return reasons


def _in_use(story: Story, leak: LeakReport) -> dict[str, int]:
    """Leaked memory is listed separately: it would be taken for activations."""
    in_use = dict(story.memory.in_use)
    if _is_leak(story, leak):
        leaked = left = _leaked_bytes(story, leak)
        for part in ("activations", "evaluation", "generation", "other"):
            taken = min(left, in_use.get(part, 0))
            if taken:
                in_use[part], left = in_use[part] - taken, left - taken
        in_use["the leak"] = leaked - left
    return {part: size for part, size in in_use.items() if size}


def _leaked_bytes(story: Story, leak: LeakReport) -> int:
    return int(leak.bytes_per_step * max(0, story.step - leak.since_step))


def _is_leak(story: Story, leak: LeakReport) -> bool:
    if leak.verdict != "leak" or (leak.where == "device") != (story.found.where == "device"):
        return False
    used = story.memory.used_bytes or sum(story.memory.in_use.values())
    return _leaked_bytes(story, leak) > _LEAK_FRAC * used


def _of_callback(failure: CallbackFailure) -> str:
    if failure.copied_bytes is None:
        return f"{failure.callback} asked for it at {failure.line}: {failure.source}"
    of = " and ".join(failure.copied)
    what = f"a copy of {format_bytes(failure.copied_bytes)}" + (f" of {of}" if of else "")
    return f"{failure.callback} makes {what} at {failure.line}."


def _of_batch(story: Story) -> str | None:
    batch, largest = story.batch, story.largest
    if not story.in_training or batch is None or batch.of == GRAPH:
        return None
    if largest is None:
        return None if story.steps_done else f"the first batch, {_shape(batch)}; there was none before it."
    if batch.size <= largest.size:
        return None
    peak = f", peak {format_bytes(story.largest_bytes)}" if story.largest_bytes is not None else ""
    longest = "longest" if batch.length is not None and batch.rows <= largest.rows else "largest"
    if batch.length is None and len(batch.sample) > 0 and batch.sample != largest.sample:
        now, before = (f"{one.rows:,} x {_sides(one.sample)}" for one in (batch, largest))
        return f"the largest batch so far, {now}; until then at most {before}{peak}."
    return f"the {longest} batch so far, {_shape(batch)}; until then at most {_shape(largest, brief=True)}{peak}."


def _sides(sample: tuple[int, ...]) -> str:
    return by_sides(sample) if len(sample) == 1 else f"({by_sides(sample)})"


def _shape(batch: Batch, brief: bool = False) -> str:
    if batch.length is None:
        return f"{batch.rows:,}" if brief else f"{batch.rows:,} rows"
    return f"{batch.rows:,} x {batch.length:,}" + ("" if brief else " tokens")


def _first_optimizer_step(story: Story) -> str:
    parameters = story.memory.in_use.get("parameters")
    beside = f", beside {format_bytes(parameters)} of parameters" if parameters else ""
    return f"the first optimizer step, which creates the optimizer state{beside}."
