"""Why memory ran out at that moment, and what was not the reason: the report's `oom` and its sentence."""

from __future__ import annotations

from forgather_mem.diagnose.oom.batch_shapes import GRAPH, Batch
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import NCCL_SHM, PINNED
from forgather_mem.heap.failed_call import CallbackFailure
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


def sentence(failure: Failure) -> str:
    """One line for a log."""
    where = f", in {failure.layer}" if failure.layer else ""
    return f"out of memory in {failure.phase}{where}: {failure.found}"


def oom_of(failure: Failure, leak: LeakReport = NOT_JUDGED) -> OomReport:
    """The report's `oom`, without advice.

    Args:
        failure: What is known.
        leak: The verdict about leaks.
    """
    found, memory = failure.found, failure.memory
    return OomReport(
        where=found.where,
        step=failure.step,
        phase=failure.phase,
        rank=failure.rank,
        layer=failure.layer if failure.phase not in ("data", "save", "resume", "startup") else None,
        requested_bytes=found.requested_bytes,
        free_bytes=None if memory.freed_bytes else memory.free_bytes,
        limit_bytes=memory.limit_bytes,
        limit=memory.limit,
        reserved_unused_bytes=memory.reserved_unused_bytes,
        others_bytes=memory.others_bytes,
        in_use=_in_use(failure, leak),
        batch=None if failure.batch is None else failure.batch.named,
        why_now=why_now(failure, leak),
        not_because=tuple(not_because(failure, leak)),
        kind=found.kind,
        error_type=found.error_type,
        message=found.message,
        callback=None if failure.callback is None else failure.callback.callback,
        line=None if failure.callback is None else failure.callback.line,
        copied_bytes=None if failure.callback is None else failure.callback.copied_bytes,
    )


def why_now(failure: Failure, leak: LeakReport) -> str | None:
    """The reason that best explains why memory did not run out earlier; None if unknown."""
    if _is_leak(failure, leak):
        grows = f"a leak: {format_bytes(leak.bytes_per_step)} a step since step {leak.since_step:,}"
        held = next((suspect.held_by for suspect in leak.suspects if suspect.held_by), None)
        return f"{grows}, held by {held}." if held else f"{grows}."
    if failure.found.kind in _OF_KIND:
        return _OF_KIND[failure.found.kind]
    if failure.callback is not None:
        return _of_callback(failure.callback)
    others, limit = failure.memory.others_bytes, failure.memory.limit_bytes
    if others and limit and others > _NEIGHBOUR_FRAC[failure.found.where] * limit:
        return f"other processes have {format_bytes(others)} of this {_OF_WHAT[failure.found.where]}."
    if failure.phase in ("forward", "backward"):
        return _of_batch(failure)
    if failure.phase == "optimizer" and failure.is_first:
        return _first_optimizer_step(failure)
    if failure.phase == "startup":
        return "before the first step: it does not fit even without a batch." if failure.in_training else None
    if failure.phase in _FIRST and (failure.is_first or failure.phase == "resume") and failure.in_training:
        done = failure.predictions if failure.phase == "evaluate" else None
        return _FIRST[failure.phase] + (f", in its batch {done + 1:,}." if done is not None else ".")
    return None


def not_because(failure: Failure, leak: LeakReport) -> list[str]:
    """Usual suspicions that can be ruled out."""
    reasons = []
    if leak.verdict == "no leak":
        reasons.append(f"Not a leak (under {format_bytes(leak.bytes_per_step_high)} a step)")
    unused, wanted = failure.memory.reserved_unused_bytes, failure.found.requested_bytes
    if failure.found.where == "device" and unused is not None and unused < (wanted or 256 * MIB):
        reasons.append(f"Not fragmentation ({format_bytes(unused)} kept unused)")
    return reasons


def _in_use(failure: Failure, leak: LeakReport) -> dict[str, int]:
    """Leaked memory is listed separately: it would be taken for activations."""
    in_use = dict(failure.memory.in_use)
    if _is_leak(failure, leak):
        leaked = left = _leaked_bytes(failure, leak)
        for part in ("activations", "evaluation", "generation", "other"):
            taken = min(left, in_use.get(part, 0))
            if taken:
                in_use[part], left = in_use[part] - taken, left - taken
        in_use["the leak"] = leaked - left
    return {part: size for part, size in in_use.items() if size}


def _leaked_bytes(failure: Failure, leak: LeakReport) -> int:
    return int(leak.bytes_per_step * max(0, failure.step - leak.since_step))


def _is_leak(failure: Failure, leak: LeakReport) -> bool:
    if leak.verdict != "leak" or (leak.where == "device") != (failure.found.where == "device"):
        return False
    used = failure.memory.used_bytes or sum(failure.memory.in_use.values())
    return _leaked_bytes(failure, leak) > _LEAK_FRAC * used


def _of_callback(failed: CallbackFailure) -> str:
    if failed.copied_bytes is None:
        return f"{failed.callback} asked for it at {failed.line}: {failed.source}"
    of = " and ".join(failed.copied)
    what = f"a copy of {format_bytes(failed.copied_bytes)}" + (f" of {of}" if of else "")
    return f"{failed.callback} makes {what} at {failed.line}."


def _of_batch(failure: Failure) -> str | None:
    batch, largest = failure.batch, failure.largest
    if not failure.in_training or batch is None or batch.of == GRAPH:
        return None
    if largest is None:
        return None if failure.steps_done else f"the first batch, {_shape(batch)}; there was none before it."
    if batch.size <= largest.size:
        return None
    peak = f", peak {format_bytes(failure.largest_bytes)}" if failure.largest_bytes is not None else ""
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


def _first_optimizer_step(failure: Failure) -> str:
    parameters = failure.memory.in_use.get("parameters")
    beside = f", beside {format_bytes(parameters)} of parameters" if parameters else ""
    return f"the first optimizer step, which creates the optimizer state{beside}."
