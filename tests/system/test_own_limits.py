"""What a process may set aside below its own limits on addresses, and what is kept to tell of a failure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forgather_mem.system.own_limits import Reserve, may_start_a_thread, own_limits, spare_bytes
from forgather_mem.system.procfs import kib_fields
from forgather_mem.units import MIB

CHILD = """
import resource, sys, threading
from pathlib import Path
from forgather_mem.formats.stalls import may_stall
from forgather_mem.system.own_limits import Reserve, may_start_a_thread, own_limits, spare_bytes
from forgather_mem.system.procfs import kib_fields
number = getattr(resource, sys.argv[1])
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
kept = kib_fields(Path("/proc/self/status").read_bytes())["{}".format(sys.argv[2]).encode()]
resource.setrlimit(number, (kept + (int(sys.argv[3]) << 20), resource.RLIM_INFINITY))
(limit,) = own_limits()
reserve = Reserve(8 << 20)
reserve.take()
with may_stall("a"), may_stall("b"):
    print(limit.name, round(spare_bytes() / 2**18), round(reserve.size_bytes / 2**18), may_start_a_thread(),
          threading.active_count())
reserve.release()
assert reserve.size_bytes == 0
reserve.take(float(6 << 20))
print(reserve.size_bytes >> 20)
"""
SAID = "too little is left below this process's limits"


@pytest.mark.parametrize(
    ("limit", "left_mib", "spare", "held", "thread"),
    [
        ("RLIMIT_DATA VmData", 48, 12, 0, False),  # in quarters of a MiB
        ("RLIMIT_DATA VmData", 96, 22, 24, False),
        ("RLIMIT_DATA VmData", 512, 126, 32, True),
        ("RLIMIT_AS VmSize", 512, 126, 32, False),
        ("RLIMIT_AS VmSize", 4096, 1022, 32, True),
    ],
)
def test_of_what_a_limit_leaves_little_is_set_aside(
    limit: str, left_mib: int, spare: int, held: int, thread: bool
) -> None:
    words = [sys.executable, "-c", CHILD, *limit.split(), str(left_mib)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    first, last = done.stdout.splitlines()
    name, spare_said, held_said, may_start, threads = first.rsplit(" ", 4)
    assert limit.split()[0] in name
    assert int(spare_said) == pytest.approx(spare, rel=0.1)
    assert int(held_said) == pytest.approx(held, abs=1)
    assert (may_start, int(threads)) == (str(thread), 1 + thread)
    assert done.stderr.count(SAID) == (not thread), "it is said once"
    assert last == "6"


def test_without_such_a_limit_all_of_the_reserve_is_held_and_nothing_is_stored_in_it() -> None:
    assert own_limits() == []
    assert spare_bytes() == float("inf")
    assert may_start_a_thread()
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
