"""What is known of a training besides its samples: who, where, which versions, which limits?"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from forgather_mem.probes.allocator import current_allocator, gauge
from forgather_mem.probes.limits import MemoryLimit
from forgather_mem.probes.procfs import own_memory
from forgather_mem.store import share_text
from forgather_mem.summary import RunFacts

_run_numbers = itertools.count(1)  # the same on every rank, since all ranks run the same trainings


def facts_of(args: Any, state: Any) -> RunFacts:
    """The facts at a training's beginning, from the trainer's arguments (any trainer's: what lacks is left out)."""
    rank = int(getattr(args, "process_index", os.environ.get("RANK", 0)) or 0)
    world_size = int(getattr(args, "world_size", os.environ.get("WORLD_SIZE", 1)) or 1)
    limit_bytes, limit_kind = _host_limit()
    return RunFacts(
        script=sys.argv[0] if sys.argv else "",
        argv=list(sys.argv[1:]),
        rank=rank,
        world_size=world_size,
        versions=_versions(),
        started_s=time.time(),
        host_limit_bytes=limit_bytes,
        host_limit_kind=limit_kind,
        micro_batches=int(getattr(args, "gradient_accumulation_steps", 1) or 1),
    )


def sizes_now() -> dict[str, float]:
    """What this process holds before the first step, under the names of samples; 50 us."""
    memory = own_memory()
    sizes: dict[str, float] = {"host/rss_bytes": memory.resident_bytes, "host/anon_bytes": memory.anonymous_bytes}
    with contextlib.suppress(RuntimeError):  # a device that has failed
        allocator = current_allocator()
        stats = allocator.stats() if allocator is not None else {}
        for name in ("allocated_bytes", "reserved_bytes"):
            size = gauge(stats, name)
            if size is not None:
                sizes[f"device/{name}"] = size
    return sizes


def finish_facts(facts: RunFacts, end: str, exit_code: int | None, wall_s: float, device: int | None) -> None:
    """Fill in what is known at the end only."""
    facts.end = end
    facts.exit_code = exit_code
    facts.wall_s = wall_s
    if device is not None and "torch" in sys.modules:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(device)
            facts.device_name, facts.device_total_bytes = properties.name, properties.total_memory


def current_device() -> int | None:
    """Index of this process's accelerator when it is in use already; we never initialise one."""
    if "torch" not in sys.modules:
        return None
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    if torch.cuda.is_available() and not torch.cuda.is_initialized():
        return None
    return int(accelerator.current_device_index())


def run_folder(output_dir: Path | None, rank: int) -> Path | None:
    """The folder for this run's files, the same on every rank; it is not made here.

    `FORGATHER_MEM_DIR/<time>`, else `<output_dir>/forgather_mem/<time>`, else None.
    """
    override = os.environ.get("FORGATHER_MEM_DIR")
    parent = Path(override) if override else output_dir / "forgather_mem" if output_dir else None
    if parent is None:
        return None
    key = f"folder/{next(_run_numbers)}"
    name = time.strftime("%Y%m%d-%H%M%S")
    number = 2
    while rank == 0 and (parent / name).exists():
        name = f"{name.partition('_')[0]}_{number}"
        number += 1
    return parent / share_text(key, name, rank=rank)


def _host_limit() -> tuple[int, str]:
    """The limit that applies and whose it is; 0 without a /proc."""
    with contextlib.suppress(OSError, KeyError):
        limit = MemoryLimit()
        limit.close()
        return limit.limit_bytes, limit.kind
    return 0, "host"


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "accelerate", "forgather_mem")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    versions["python"] = ".".join(map(str, sys.version_info[:3]))
    return versions
