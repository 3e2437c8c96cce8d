"""What a process may set aside below its own limits on addresses, and what is kept to tell of a failure."""

import pytest

from forgather_mem.system.memory_limit import Reserve, own_limits, spare_bytes
from forgather_mem.system.procfs import kib_fields
from forgather_mem.units import MIB
from tests.programs import printed_by

CHILD = """
import resource, sys
from pathlib import Path
from forgather_mem.system.memory_limit import limit_facts
from forgather_mem.system.memory_limit import Reserve, own_limits, spare_bytes
from forgather_mem.system.procfs import kib_fields
number = getattr(resource, sys.argv[1])
kept = kib_fields(Path("/proc/self/status").read_bytes())["{}".format(sys.argv[2]).encode()]
resource.setrlimit(number, (kept + (int(sys.argv[3]) << 20), resource.RLIM_INFINITY))
(limit,) = own_limits()
reserve = Reserve(8 << 20)
reserve.take()
print(limit.limit, round(spare_bytes() / 2**18), round(reserve.size_bytes / 2**18))
reserve.release()
assert reserve.size_bytes == 0
reserve.take(float(6 << 20))
assert limit_facts() == (limit.limit_bytes, sys.argv[1]) != limit_facts(shared=True)
print(reserve.size_bytes >> 20)
"""


@pytest.mark.parametrize(
    ("limit", "left_mib", "spare", "held"),
    [
        ("RLIMIT_DATA VmData", 48, 12, 0),  # in quarters of a MiB
        ("RLIMIT_DATA VmData", 96, 22, 24),
        ("RLIMIT_DATA VmData", 512, 126, 32),
        ("RLIMIT_AS VmSize", 512, 126, 32),
        ("RLIMIT_AS VmSize", 4096, 1022, 32),
    ],
)
def test_of_what_a_limit_leaves_little_is_set_aside(limit: str, left_mib: int, spare: int, held: int) -> None:
    first, last = printed_by(CHILD, *limit.split(), left_mib).splitlines()
    name, spare_said, held_said = first.rsplit(" ", 2)
    assert limit.split()[0] in name
    assert int(spare_said) == pytest.approx(spare, rel=0.1)
    assert int(held_said) == pytest.approx(held, abs=1)
    assert last == "6"


def test_without_such_a_limit_all_of_the_reserve_is_held_and_nothing_is_stored_in_it() -> None:
    assert own_limits() == []
    assert spare_bytes() == float("inf")
    before = _sizes()
    reserve = Reserve(8 * MIB)
    reserve.take()
    after = _sizes()
    assert reserve.size_bytes == 8 * MIB
    assert after[b"VmData"] - before[b"VmData"] >= 8 * MIB
    assert after[b"RssAnon"] - before[b"RssAnon"] < 8 * MIB // 4
    reserve.release()


def _sizes() -> dict[bytes, int]:
    with open("/proc/self/status", "rb") as file:
        return kib_fields(file.read())
