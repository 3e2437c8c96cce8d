"""`tracemalloc` is started only where Python can stop it again beside the process's other threads."""

import ctypes
import sys
import tracemalloc

import pytest

from forgather_mem.heap.allocation_traces import start_tracing


@pytest.mark.fresh
def test_it_is_started_once_and_the_caller_stops_it() -> None:
    assert start_tracing(3)
    assert tracemalloc.get_traceback_limit() == 3
    assert not start_tracing(1), "somebody else traces, and stops it"
    tracemalloc.stop()


@pytest.mark.fresh
@pytest.mark.skipif(sys.version_info >= (3, 12, 9), reason="Python can stop it beside other threads")
def test_beside_a_thread_that_is_not_pythons_it_is_not_started() -> None:
    library = ctypes.CDLL(None)
    thread = ctypes.c_void_p()
    assert library.pthread_create(ctypes.byref(thread), None, library.pause, None) == 0
    assert not start_tracing(1)
    assert not tracemalloc.is_tracing()
