"""What tensors take of the host is asked of the C library itself."""

import ctypes
import resource

import pytest

from forgather_mem.launch.host_heap import taken_of_host
from forgather_mem.planning.storage_log import Stretch, Trace
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import GIB, KIB, MIB

LARGE, STAYS = 64 * MIB, 40 * MIB
STEP = [Stretch(0, 1, "forward")]


def test_what_is_mapped_by_itself_takes_its_own_bytes() -> None:
    for (taken,) in taken_of_host(Trace([0, ~0], [LARGE], STEP), of_several_sizes=False):
        assert (taken.size, taken.before_bytes) == (LARGE, 0)
        assert LARGE <= taken.taken_bytes < LARGE + 256 * KIB


def test_where_batches_differ_what_stays_keeps_its_size() -> None:
    trace = Trace([0, 1, ~1], [STAYS, LARGE], STEP)
    first, second, *_ = taken_of_host(trace, of_several_sizes=True)
    assert [one.size for one in first] == [STAYS, LARGE]
    assert [(one.size, one.before_bytes) for one in second] == [(LARGE // 2, STAYS)]


def test_what_a_limit_refuses_ends_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own_memory().address_bytes + GIB, before[1]))
    try:
        ((first, refused),) = taken_of_host(Trace([0, 1, ~1, ~0], [LARGE, 2 * GIB], STEP), of_several_sizes=True)[:1]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert (first.size, first.is_refused, refused.is_refused) == (LARGE, False, True)
    assert refused.taken_bytes == LARGE + 2 * GIB


@pytest.mark.fresh
def test_small_objects_between_tensors_keep_what_is_freed_apart() -> None:
    malloc = ctypes.CDLL(None).malloc
    for size in range(24, 232, 8):  # holes of this heap, in which small objects would lie
        for _ in range(4000):
            malloc(size)
    kept, twice = [*range(2000)], [*range(2000, 3000)]
    step = [*kept, *(~number for number in kept), *twice, *(~number for number in twice)]
    sizes = [MIB // 4] * 2000 + [MIB // 2] * 1000
    for without, first, is_apart in ((twice, "forward", True), (twice, "backward", False), (step, "forward", False)):
        phases = [Stretch(0, 1, first), Stretch(2000, 1, "backward"), Stretch(len(step), 2, "data")]
        taken = taken_of_host(Trace(step, sizes, phases, {*without}), of_several_sizes=False)
        most_bytes = max(one.taken_bytes for found in taken for one in found)
        assert (most_bytes > 530 * MIB) is is_apart  # of 500 MiB of tensors
