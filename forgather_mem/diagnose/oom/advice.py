"""Advice after an out-of-memory error: changes ranked by their predicted bytes, and what would not have helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forgather_mem.diagnose.oom.batches import Batches, in_samples
from forgather_mem.diagnose.oom.causes import causes, variable_changes
from forgather_mem.diagnose.oom.changes import LENGTHS, changes_training, checkpointing_name, step_changes
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings, StepUse
from forgather_mem.diagnose.oom.messages import BESIDE_TORCH, NCCL_SHM, PINNED
from forgather_mem.diagnose.oom.phase_changes import BY_PHASE, array_changes, callback_changes
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

# Memory reserved but unused by the allocator is mentioned from this fraction of the capacity.
_WORTH_FRAC = 0.05
_LEFT_TO_LIBRARIES = 0.9
_GRAPHS = ("reduce-overhead", "max-autotune")
_NO_BATCH = {
    "startup": "a smaller batch (there is no batch yet)",
    "resume": "a smaller batch (there is no batch yet)",
    "optimizer": "a smaller batch (its memory is free by then)",
    "save": "a smaller batch (a checkpoint holds none)",
    "evaluate": "per_device_train_batch_size (evaluations have their own)",
    "generate": "per_device_train_batch_size (generation has its own)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What would have helped, best first.

    Attributes:
        changes: The first is the one to try first.
        fit: What the sizes are based on, for `oom.fit`.
        no_help: What would not have helped, and why, for `oom.no_help`; None if there is nothing to say.
    """

    changes: tuple[Change, ...] = ()
    fit: str | None = None
    no_help: str | None = None


def advise(failure: FailureContext, settings: RunSettings, uses: Sequence[StepUse] = ()) -> Advice:
    """Changes that would have let this run finish.

    Sizes are predicted only from a fit or from known sizes; otherwise the change is named without one.

    >>> settings = RunSettings(arguments={"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1})
    >>> advise(FailureContext(where="device", phase="forward", step=1, rows=8, length=512), settings).changes[0].text
    'per_device_train_batch_size=2, gradient_accumulation_steps=4'

    Args:
        failure: Where memory ran out.
        settings: The run's settings.
        uses: Memory use of the steps before the failure, by the shapes of their batches.
    """
    if is_in_shm(failure):
        return Advice(changes=tuple(shm_changes(failure)), fit="not measured", no_help="a smaller batch.")
    if failure.phase == "data":  # the batch that could not be made is unknown
        failure, uses = replace(failure, rows=None, length=None), ()
    whole = failure
    failure, uses = in_samples(failure, settings, uses)
    batches = Batches(failure, settings, uses)
    if failure.callback is not None:
        changes = callback_changes(failure, failure.callback, batches)
    else:
        found, no_batch = causes(failure, batches)
        changes = [*array_changes(failure), *found]
        if failure.phase in BY_PHASE or not no_batch:
            by_phase = BY_PHASE.get(failure.phase, step_changes)(failure, settings, batches)
            changes += [change for change in by_phase if change not in changes]
        changes += [change for change in variable_changes(failure) if change not in changes]
    if failure.rows != whole.rows and failure.rows != whole.length:  # the length of no text
        changes = [change for change in changes if not {*change.set, *change.in_script} & {*LENGTHS}]
    once: dict[str, Change] = {}  # several variables may lead to one thing
    for change in changes:
        once.setdefault(change.text, change)
    changes = list(once.values())
    changes[1:1] = allocator_changes(failure, settings)
    changes[:0] = pinned_changes(failure, settings)
    changes, too_large = _sifted(changes, failure)
    if failure.leak:
        changes.insert(0, Change(text=failure.leak, note="memory that grows at each step fills any device"))
    no_help = ", ".join([*_no_help(failure, settings), *too_large])
    return Advice(
        changes=tuple(changes), fit=_basis(failure, changes, batches), no_help=f"{no_help}." if no_help else None
    )


def _sifted(changes: Sequence[Change], failure: FailureContext) -> tuple[list[Change], list[str]]:
    """The changes that may be enough, those that leave the training as it is first; and a sentence about the rest."""
    capacity = failure.capacity_bytes
    # Below the limit, but within its margin, is still worth a try
    may_fit = [change for change in changes if capacity is None or (change.predicted_bytes or 0) <= capacity]
    limit = format_bytes(capacity or 0)
    too_large = [
        f"{change.text} alone (about {format_bytes(change.predicted_bytes or 0)} of {limit})"
        for change in changes
        if change not in may_fit
    ]
    # At startup they are about different causes: mapped data make no model smaller
    in_order = may_fit if failure.phase == "startup" else sorted(may_fit, key=changes_training)
    return in_order, too_large


def _basis(failure: FailureContext, changes: Sequence[Change], batches: Batches) -> str:
    """What the numbers are based on."""
    if failure.callback is None and (failure.phase not in _NO_BATCH or failure.phase == "evaluate"):
        return batches.basis()
    measured = any(change.predicted_bytes is not None for change in changes)
    return "from the sizes of its tensors; keeps 2 % free" if measured else "not measured"


def _no_help(failure: FailureContext, settings: RunSettings) -> Iterator[str]:
    if failure.callback is not None:
        yield "a smaller batch (no pass is running)"
    elif failure.phase in _NO_BATCH:
        why = _NO_BATCH[failure.phase]
        yield why if settings.is_trainers else why.replace("per_device_train_batch_size", "a smaller training batch")
    elif settings.arguments.get(checkpointing_name(settings)):
        yield f"{checkpointing_name(settings)} (it is on)"
    elif failure.phase in ("forward", "backward") and not settings.can_checkpoint:
        yield f"{checkpointing_name(settings)} (this model has none)"
    if failure.where == "host":
        yield "empty_cache, expandable_segments (this is the host's memory)"
    elif failure.reserved_unused_bytes is not None and not any(allocator_changes(failure, settings)):
        unused = failure.reserved_unused_bytes
        what = f"only {format_bytes(unused)}" if unused else "nothing"
        yield f"empty_cache, expandable_segments ({what} to give back)"


def allocator_changes(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    """Changes where memory is free but not usable; none if no change would help."""
    if failure.where == "device":
        yield from _fewer_graphs(failure, settings)
        if failure.kind in BESIDE_TORCH:
            yield from _less_cache(failure)
        else:
            yield from _fewer_pieces(failure, settings)
    elif (failure.heap_free_bytes or 0) >= _worth_bytes(failure):
        yield Change(
            text="forgather_mem.actions.TrimHost at evaluations and saves",
            note=f"{format_bytes(failure.heap_free_bytes or 0)} are kept by the C library",
        )


def shm_changes(failure: FailureContext) -> list[Change]:
    """Changes for NCCL's files in /dev/shm, which no setting of the training makes smaller."""
    larger = Change(
        text="a larger /dev/shm: docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        note="docker gives 64 MiB unless told otherwise",
    )
    without = Change(
        text="NCCL_SHM_DISABLE=1",
        in_script={"NCCL_SHM_DISABLE": "1"},
        note="GPUs without a direct link then use the network, slower",
    )
    return [larger, without]


def pinned_changes(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    """Changes for page-locked copies of batches."""
    if failure.kind != PINNED and "pin_memory" not in failure.frames:
        return
    note = "no second, page-locked copy; not measured"
    if settings.arguments.get("dataloader_pin_memory"):
        yield Change(text="dataloader_pin_memory=False", set={"dataloader_pin_memory": False}, note=note)
    elif failure.kind == PINNED:
        yield Change(text="pin_memory=False", in_script={"pin_memory": False}, note=note)


def is_in_shm(failure: FailureContext) -> bool:
    """Whether NCCL found no room in /dev/shm."""
    return failure.kind == NCCL_SHM


def _fewer_graphs(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    pools = failure.parts.get("private pools", 0)
    if pools < _worth_bytes(failure):
        return
    note = f"{format_bytes(pools)} are in private pools of CUDA graphs, which nothing else can use; not measured"
    if settings.arguments.get("torch_compile_mode") in _GRAPHS:
        yield Change(text="torch_compile_mode=default", set={"torch_compile_mode": "default"}, note=note)
    else:
        yield Change(text="no CUDA graphs: torch.compile(mode='default'), or graphs of fewer shapes", note=note)


def _less_cache(failure: FailureContext) -> Iterator[Change]:
    """A smaller cache of torch, for a library that asks the driver itself and can't use what torch keeps."""
    unused = failure.reserved_unused_bytes or 0
    if unused >= _worth_bytes(failure):
        yield Change(
            text=f"torch.cuda.set_per_process_memory_fraction({_LEFT_TO_LIBRARIES}) before the training",
            in_script={"memory_fraction": _LEFT_TO_LIBRARIES},
            note=f"{format_bytes(unused)} are kept by torch, where {failure.kind} can't use them; not measured",
        )


def _fewer_pieces(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    unused = failure.reserved_unused_bytes or 0
    if unused < _worth_bytes(failure) or "expandable_segments:True" in settings.allocator_conf:
        return
    name = "PYTORCH_HIP_ALLOC_CONF" if failure.kind.startswith("HIP") else "PYTORCH_CUDA_ALLOC_CONF"
    value = ",".join(filter(None, (settings.allocator_conf, "expandable_segments:True")))
    yield Change(
        text=f"{name}={value}", in_script={name: value}, note=f"{format_bytes(unused)} are free, in small pieces"
    )


def _worth_bytes(failure: FailureContext) -> float:
    return max(failure.requested_bytes or 0, _WORTH_FRAC * (failure.capacity_bytes or 0), 1)
