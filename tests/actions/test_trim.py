import ctypes
from collections.abc import Callable

import pytest

from forgather_mem.actions import TrimHost, trim
from forgather_mem.units import MIB
from tests.memory import status_bytes

Act = Callable[..., dict[str, float]]
BLOCK = 64 * 1024  # below glibc's threshold for a mapping of its own

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
needs_glibc = pytest.mark.skipif(not hasattr(libc, "malloc_trim"), reason="needs glibc")


def leave_holes(mib: int) -> list[int]:
    """Frees `mib` MiB of blocks in a heap whose top stays in use, so that glibc keeps them."""
    blocks = [libc.malloc(BLOCK) for _ in range(mib * MIB // BLOCK)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    kept = [libc.malloc(BLOCK)]
    ctypes.memset(kept[0], 1, BLOCK)
    for block in blocks:
        libc.free(block)
    return kept


@needs_glibc
def test_what_glibc_kept_goes_back_to_the_system(act: Act) -> None:
    kept = leave_holes(64)
    before = status_bytes("VmRSS")
    action = TrimHost()
    values = act(action)
    after = status_bytes("VmRSS")
    assert action.available
    assert values["trim/freed_bytes"] == pytest.approx(before - after, abs=MIB)
    assert values["trim/freed_bytes"] > 60 * MIB
    assert values["trim/time_s"] > 0
    for block in kept:
        libc.free(block)


@needs_glibc
def test_trims_stay_within_their_share_of_the_time(act: Act) -> None:
    action = TrimHost(budget_frac=1e-6)
    assert act(action)
    assert act(action) == {}


def test_without_glibc_nothing_is_done(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "_malloc_trim", lambda: None)
    action = TrimHost()
    assert not action.available
    assert act(action) == {}
