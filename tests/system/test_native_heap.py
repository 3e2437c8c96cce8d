"""What the C library has handed out, compared with blocks of a known size."""

import ctypes

import pytest

from forgather_mem.system.native_heap import allocated_natively_bytes, mallinfo2
from forgather_mem.units import MIB


@pytest.mark.parametrize("size", [64 * MIB, 100_000], ids=["a mapping of its own", "a part of the heap"])
def test_a_block_counts_from_its_allocation_until_it_is_freed(size: int) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = allocated_natively_bytes()
    if before is None:
        pytest.skip("this C library has no mallinfo2")
    block = libc.malloc(size)
    during = allocated_natively_bytes()
    libc.free(block)
    after = allocated_natively_bytes()
    assert size <= during - before < size + 50_000
    assert abs(after - before) < 50_000


def test_with_another_allocator_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    mallinfo2.cache_clear()
    try:
        assert (mallinfo2(), allocated_natively_bytes()) == (None, None)
    finally:
        mallinfo2.cache_clear()
