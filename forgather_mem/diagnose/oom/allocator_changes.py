"""Changes to allocators: where memory is free, but not for whoever asked, or where another memory than RAM is full."""

from __future__ import annotations

from collections.abc import Iterator

from forgather_mem.diagnose.oom.context import FailureContext, RunSettings
from forgather_mem.diagnose.oom.messages import BESIDE_TORCH, NCCL_SHM, PINNED
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

# Memory reserved but unused by the allocator is mentioned from this fraction of the capacity.
_WORTH_FRAC = 0.05
_LEFT_TO_LIBRARIES = 0.9
_GRAPHS = ("reduce-overhead", "max-autotune")


def allocator_changes(failure: FailureContext, settings: RunSettings) -> Iterator[Change]:
    """For memory that is free in the wrong place: only where a change would help."""
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
    """For NCCL's files in /dev/shm, which no setting of the training makes smaller."""
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
    """For page-locked copies of batches."""
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
    """Of a library that asks the driver itself: what torch keeps is no use to it."""
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
