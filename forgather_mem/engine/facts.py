"""Facts about a training apart from its samples: names, ranks, versions, limits."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forgather_mem.engine.summary import RunFacts
from forgather_mem.errors import missing
from forgather_mem.system.allocator import current_allocator, gauge, used_allocators
from forgather_mem.system.cgroups import kill_counter
from forgather_mem.system.memory_limit import limit_facts
from forgather_mem.system.native_heap import allocated_natively_bytes, unused_heap_bytes
from forgather_mem.system.process_start import loaded_versions, process_header, what_runs
from forgather_mem.system.procfs import own_memory
from forgather_mem.system.rank_store import count, share_text
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.run_session import rank_and_size

logger = logging.getLogger(__name__)


def header_of(args: Any, step: int = 0) -> RunHeader:
    """What is known of a process that trains, from the arguments of any trainer; what they lack is left out."""
    rank, world_size = rank_and_size()
    limit_bytes, limit_kind = limit_facts()
    known: Any = process_header(os.getpid(), what_runs(), sys.argv[1:])
    return RunHeader(
        **{**known, "argv": tuple(known["argv"])}, rank=int(getattr(args, "process_index", rank) or 0),
        world_size=int(getattr(args, "world_size", world_size) or 1), worker=_worker(), versions=loaded_versions(),
        limit_bytes=limit_bytes, limit_kind=limit_kind, step=step, kills=kill_counter() or None,
        micro_batches=int(getattr(args, "gradient_accumulation_steps", 1) or 1),
    )  # fmt: skip


def _worker() -> str:
    """Which of several processes of `multiprocessing` this is."""
    process = multiprocessing.current_process()
    if multiprocessing.parent_process() is None:
        return ""
    is_spawned = getattr(getattr(process, "_target", None), "__module__", "") == "torch.multiprocessing.spawn"
    return f"rank {getattr(process, '_args', '  ')[1]}" if is_spawned else process.name


def startup_of(began_s: float) -> tuple[tuple[float, float], ...]:
    """The age and the resident bytes of this process whenever its parent has looked.

    The first training of a process asks before it has a black box of its own: the parent's ring then goes.
    """
    from forgather_mem.formats.ring import read_ring

    with missing(OSError, ValueError):  # no run, or another training of it was before
        ring = read_ring(os.path.join(run_session.folder() or "", run_session.WAITING_RING))
        if ring.header.get("pid") == os.getpid() and began_s:  # else it is of a launcher
            seen = [(sample.time_s - began_s, sample.values.get("host/rss_bytes", 0)) for sample in ring.samples]
            return tuple((round(age_s, 2), int(size)) for age_s, size in seen if size)
    return ()


def sizes_now() -> dict[str, float]:
    """Memory of this process before the first step, under sample names; 50 us."""
    memory, allocated = own_memory(), allocated_natively_bytes()
    sizes: dict[str, float] = {"host/rss_bytes": memory.resident_bytes, "host/anon_bytes": memory.anonymous_bytes}
    if allocated is not None:
        sizes |= {"host/allocated_bytes": allocated, "host/gaps_bytes": unused_heap_bytes()}
    return sizes | device_sizes([(name, name, "current") for name in ("allocated_bytes", "reserved_bytes")])


def device_sizes(asked: Sequence[tuple[str, str, str]]) -> dict[str, float]:
    """What the allocators in use tell, under sample names.

    Args:
        asked: The name behind the device's, and of its statistics which one, and which value of it.
    """
    sizes: dict[str, float] = {}
    for number, allocator in enumerate(used_allocators()):
        stats, family = allocator.stats(), f"device{allocator.index}" if number else "device"
        found = {name: gauge(stats, of, which) for name, of, which in asked}
        sizes |= {f"{family}/{name}": size for name, size in found.items() if size is not None}
    return sizes


def finish_facts(facts: RunFacts, end: str, wall_s: float, device: int | None) -> None:
    """Fill in what is known only at the end."""
    facts.end, facts.wall_s = end, wall_s
    facts.allocated_end_bytes = allocated_natively_bytes() or 0
    for allocator in used_allocators() if device is not None else ():
        used = allocator.device()
        facts.devices[allocator.index] = used.name, used.total_bytes


def current_device() -> int | None:
    """Index of this process's accelerator if it is already in use; we never initialise one."""
    allocator = current_allocator()
    return None if allocator is None else allocator.index


def training_key(first_step: int, rank: int, world_size: int) -> str:
    """A text of this training that is equal on all ranks, and of no other training of theirs; for the ranks' store.

    The store counts the trainings of each rank that begin at this step. A rank that gets no answer stays alone.
    """
    number = count(f"trainings/{first_step}/{rank}") if world_size > 1 else 0
    return f"{first_step}.{number if number is not None else f'alone-{rank}-{time.time()}'}"


def run_folder(output_dir: Path | None, rank: int, key: str) -> Path | None:
    """The new folder for this run's files, the same on every rank; rank 0 makes it, where that can be done.

    `FORGATHER_MEM_DIR/<time>`, else `<output_dir>/forgather_mem/<time>`, else None. A `forgather_mem` that is a
    link is not followed: nobody has named the place it leads to. Other links are resolved now: one that is met on this
    path while the training runs is not followed either. `key` is of this training alone.
    """
    override = os.environ.get("FORGATHER_MEM_DIR")
    parent = Path(override) if override else output_dir / "forgather_mem" if output_dir else None
    if parent is None:
        return None
    is_link = not override and parent.is_symlink()
    name = share_text(key, time.strftime("%Y%m%d-%H%M%S") if rank or is_link else _make_new(parent), rank=rank)
    if is_link:
        logger.warning("%s is a link, and nothing is written through it; FORGATHER_MEM_DIR names another place", parent)
        return None
    return Path(os.path.realpath(parent)) / name


def _make_new(parent: Path) -> str:
    """The name of the folder that was made; of one that can't be made, which whoever writes there will find out."""
    stamp = name = time.strftime("%Y%m%d-%H%M%S")
    with missing(OSError):
        for number in range(2, 1000):
            try:
                (parent / name).mkdir(parents=True)
                return name
            except FileExistsError:
                name = f"{stamp}_{number}"
    return name
