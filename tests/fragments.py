"""A host heap that is really fragmented: blocks of glibc's malloc that leave holes, which glibc keeps."""

import ctypes

import pytest

from forgather_mem.units import MIB

libc = ctypes.CDLL(None)
needs_glibc = pytest.mark.skipif(not hasattr(libc, "malloc_trim"), reason="needs glibc")
if hasattr(libc, "malloc_trim"):
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
BLOCK = 64 * 1024  # below glibc's threshold for a mapping of its own
FITS = BLOCK - 1024  # fits into the hole that a block leaves


class Fragments:
    """Holes in the heap, and what is made in them. Each hole has a small neighbour in use, so that none are joined."""

    def __init__(self) -> None:
        self._in_use: list[int] = []

    def leave_holes(self, mib: float) -> None:
        """New holes of so much memory, all of it touched; blocks of the same size do not fit into them again."""
        blocks = self._touched(mib, BLOCK)
        self._in_use += [libc.realloc(block, 64) for block in blocks]  # shrunk where it lies

    def use_holes(self, mib: float) -> None:
        """So much is allocated in holes, touched and freed."""
        for block in self._touched(mib, FITS):
            libc.free(block)

    def close(self) -> None:
        """Free what is still in use."""
        for block in self._in_use:
            libc.free(block)
        self._in_use.clear()
        libc.malloc_trim(0)

    def _touched(self, mib: float, size: int) -> list[int]:
        blocks = [libc.malloc(size) for _ in range(int(mib * MIB) // size)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        return blocks
