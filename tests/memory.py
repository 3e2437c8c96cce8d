"""Known amounts of memory to allocate, touch and give back, and the kernel's own word for what a process has."""

import mmap
import time
from pathlib import Path

from forgather_mem.units import MIB


def touched(mib: float) -> mmap.mmap:
    """A private anonymous mapping of `mib` MiB, every page resident; `close()` gives all of it back at once."""
    return mmap.mmap(-1, int(mib * MIB), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


def spike(mib: float, hold_s: float = 0.0) -> None:
    """Allocates `mib` MiB, holds them for `hold_s` seconds and gives them back."""
    block = touched(mib)
    time.sleep(hold_s)
    block.close()


def load_blas() -> None:
    """OpenBLAS takes 128 MiB of addresses at its first product, and ends the process where it can't have them."""
    import torch  # not for all who use this file

    torch.ones(512, 512) @ torch.ones(512, 512)


def status_bytes(field: str, pid: int | str = "self") -> int:
    """One `kB` field of `/proc/<pid>/status`, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def reset_kernel_mark() -> None:
    """What somebody else in this process would do."""
    Path("/proc/self/clear_refs").write_text("5")


def open_descriptors() -> set[str]:
    """What this process has open, by the names of the files."""
    names = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            names.add(f"{link.name}:{link.readlink()}")
        except OSError:
            continue  # the descriptor that listed the folder
    return names
