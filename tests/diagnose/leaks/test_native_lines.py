"""The line of the user's that calls what keeps memory in C."""

import ctypes
import sys

from forgather_mem.diagnose.leaks.native_lines import NativeLines

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p


def step(size: int) -> None:
    block = bytearray(100_000)
    LIBC.malloc(
        ctypes.c_size_t(size),
    )
    del block


def test_the_statement_that_keeps_it_is_told_not_one_that_is_given_back() -> None:
    lines = NativeLines()
    for _ in range(12):
        step(4_000)
    found, other = lines.line_of(12 * 4_000), lines.line_of(12 * 100_000)
    lines.close()
    assert (found, other) == ((__file__, step.__code__.co_firstlineno + 2), None)
    assert sys.gettrace() is None


def test_where_a_debugger_traces_it_is_left_alone() -> None:
    def debugger(*_: object) -> None:
        return None

    sys.settrace(debugger)
    lines = NativeLines()
    step(4_000)
    lines.close()
    traced = sys.gettrace()
    sys.settrace(None)
    assert (traced, lines.line_of(4_000)) == (debugger, None)
