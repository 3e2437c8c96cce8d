"""What tensors take of the host is asked of the C library itself."""

import resource

from forgather_mem.launch.host_heap import taken_of_host
from forgather_mem.planning.storage_log import Trace
from forgather_mem.system.procfs import own_memory
from forgather_mem.units import GIB, KIB, MIB

LARGE, STAYS = 64 * MIB, 40 * MIB


def test_what_is_mapped_by_itself_takes_its_own_bytes() -> None:
    for (taken,) in taken_of_host(Trace([0, ~0], [LARGE]), of_several_sizes=False):
        assert (taken.size, taken.before_bytes, taken.mapped_bytes) == (LARGE, 0, LARGE)
        assert LARGE <= taken.bytes < LARGE + 256 * KIB


def test_where_batches_differ_what_stays_keeps_its_size() -> None:
    trace = Trace([0, 1, ~1], [STAYS, LARGE])
    first, second, *_ = taken_of_host(trace, of_several_sizes=True)
    assert [one.size for one in first] == [STAYS, LARGE]
    assert [(one.size, one.before_bytes) for one in second] == [(LARGE // 2, STAYS)]


def test_what_a_limit_refuses_ends_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own_memory().address_bytes + GIB, before[1]))
    try:
        ((first, refused),) = taken_of_host(Trace([0, 1, ~1, ~0], [LARGE, 2 * GIB]), of_several_sizes=True)[:1]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert (first.size, first.is_refused, refused.is_refused) == (LARGE, False, True)
    assert refused.bytes == refused.had_bytes + 2 * GIB
