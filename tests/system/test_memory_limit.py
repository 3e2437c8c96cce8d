from pathlib import Path

import psutil
import pytest

from forgather_mem.system.memory_limit import MemoryLimit, Room
from forgather_mem.units import GIB, MIB

HOST_TOTAL = 64 * GIB
UNLIMITED_V1 = 9223372036854771712


class Machine:
    """A machine's /proc and /sys/fs/cgroup in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        self.leaves(HOST_TOTAL - 10 * GIB)

    def leaves(self, available: int, more: str = "") -> None:
        head = f"MemTotal: {HOST_TOTAL // 1024} kB\nMemFree: 4 kB\nMemAvailable: {available // 1024} kB\n"
        (self.proc / "meminfo").write_text(head + more)

    def process_in(self, lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text(lines)

    def v2(self, path: str, limit: str, usage: int = 0, inactive: int = 0, root: str = "") -> Path:
        folder = self.cgroup / root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"anon 1\nfile 2\ninactive_file {inactive}\nactive_file 5\n")
        return folder

    def v1(self, path: str, limit: int, usage: int = 0, inactive: int = 0, of_all_groups: int = UNLIMITED_V1) -> Path:
        folder = self.cgroup / "memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
        smallest = min(limit, of_all_groups)
        stat = f"cache 1\ninactive_file 7\nhierarchical_memory_limit {smallest}\ntotal_inactive_file {inactive}\n"
        (folder / "memory.stat").write_text(stat)
        return folder

    def limit(self) -> MemoryLimit:
        return MemoryLimit(self.proc, self.cgroup)

    def tightest(self) -> Room:
        return self.limit().rooms()[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_v2_page_cache_that_can_be_dropped_is_not_use(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    machine.v2("job", str(8 * GIB), usage=3 * GIB, inactive=GIB)
    assert machine.tightest() == Room("container", 8 * GIB, 2 * GIB)
    assert (machine.limit().kind, machine.limit().limit_bytes) == ("cgroup", 8 * GIB)


def test_v1_page_cache_of_the_whole_subtree_is_not_use(machine: Machine) -> None:
    machine.process_in("8:pids:/\n4:cpu,memory:/job\n0::/\n")
    machine.v1("", UNLIMITED_V1)
    machine.v1("job", 8 * GIB, usage=3 * GIB, inactive=GIB)
    assert machine.tightest() == Room("container", 8 * GIB, 2 * GIB)
    assert (machine.limit().kind, machine.limit().limit_bytes) == ("cgroup", 8 * GIB)


@pytest.mark.parametrize(("outer", "inner"), [(4, 16), (16, 4)])
def test_the_smallest_limit_of_all_ancestors_applies(machine: Machine, outer: int, inner: int) -> None:
    machine.process_in("0::/pod/box/task\n")
    machine.v2("pod", str(outer * GIB), usage=outer * MIB)
    machine.v2("pod/box", "max", usage=7)
    machine.v2("pod/box/task", str(inner * GIB), usage=inner * MIB)
    assert machine.limit().limit_bytes == 4 * GIB
    assert machine.tightest().used_bytes == 4 * MIB, "the usage of the level whose limit it is"


def test_of_two_equal_limits_the_outer_one_leaves_less(machine: Machine) -> None:
    machine.process_in("0::/job/step\n")
    machine.v2("job", str(4 * GIB), usage=3 * GIB)
    machine.v2("job/step", str(4 * GIB), usage=GIB)
    assert machine.tightest() == Room("container (memory.max of /job)", 4 * GIB, 3 * GIB)


def test_what_is_left_is_the_least_of_all_levels_not_what_the_smallest_limit_leaves(machine: Machine) -> None:
    machine.process_in("0::/pod/box\n")
    machine.v2("pod", str(40 * GIB), usage=39 * GIB)  # a neighbour in the pod has taken most
    machine.v2("pod/box", str(20 * GIB), usage=2 * GIB)
    assert machine.limit().limit_bytes == 20 * GIB
    assert machine.tightest() == Room("container (memory.max of /pod)", 40 * GIB, 39 * GIB)
    assert machine.tightest().free_bytes == GIB
    machine.leaves(GIB // 2)
    assert machine.tightest() == Room("host", HOST_TOTAL, HOST_TOTAL - GIB // 2)
    assert machine.limit().limit_bytes == 20 * GIB


def test_v2_slows_a_group_down_above_memory_high(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    folder = machine.v2("job", str(8 * GIB), usage=3 * GIB)
    (folder / "memory.high").write_text(f"{4 * GIB}\n")
    assert machine.tightest() == Room("container (memory.high)", 4 * GIB, 3 * GIB)
    assert machine.limit().limit_bytes == 8 * GIB, "where the kernel kills"
    (folder / "memory.current").write_text(f"{5 * GIB}\n")
    assert machine.tightest().free_bytes == 0


@pytest.mark.parametrize("setting", ["0", "max", str(GIB)])
def test_v2_a_swap_limit_bounds_no_memory(machine: Machine, setting: str) -> None:
    machine.process_in("0::/job\n")
    folder = machine.v2("job", str(8 * GIB), usage=3 * GIB)
    (folder / "memory.swap.max").write_text(f"{setting}\n")
    (folder / "memory.swap.current").write_text("0\n")
    assert machine.tightest() == Room("container", 8 * GIB, 3 * GIB)


def test_v1_memory_and_swap_have_a_limit_together(machine: Machine) -> None:
    machine.process_in("4:memory:/job\n")
    folder = machine.v1("job", 8 * GIB, usage=3 * GIB)
    (folder / "memory.memsw.limit_in_bytes").write_text(f"{9 * GIB}\n")
    (folder / "memory.memsw.usage_in_bytes").write_text(f"{8 * GIB}\n")  # 5 GiB are swapped out
    assert machine.tightest() == Room("container (memory.memsw.limit_in_bytes)", 9 * GIB, 8 * GIB)
    assert machine.limit().limit_bytes == 8 * GIB


def test_v1_tells_the_limit_of_outer_groups_that_a_container_does_not_see(machine: Machine) -> None:
    machine.process_in("4:memory:/docker/0123abcd\n")
    machine.v1("", 20 * GIB, usage=2 * GIB, of_all_groups=4 * GIB)
    assert machine.tightest() == Room("container (of an outer group)", 4 * GIB, 2 * GIB)
    assert machine.limit().limit_bytes == 4 * GIB


def test_a_group_that_is_gone_limits_nothing(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    folder = machine.v2("job", str(2 * GIB), usage=GIB)
    limit = machine.limit()
    (folder / "memory.current").unlink()
    (folder / "memory.stat").unlink()
    assert [room.limit for room in limit.rooms()] == ["host"]


def test_a_machine_that_does_not_overcommit_gives_out_no_more_than_its_commit_limit(machine: Machine) -> None:
    machine.leaves(50 * GIB, f"CommitLimit: {32 * GIB // 1024} kB\nCommitted_AS: {31 * GIB // 1024} kB\n")
    assert machine.tightest().limit == "host"
    (machine.proc / "sys" / "vm").mkdir(parents=True)
    (machine.proc / "sys" / "vm" / "overcommit_memory").write_text("2\n")
    assert machine.tightest() == Room("host (overcommit_memory=2)", 32 * GIB, 31 * GIB)


def test_a_container_that_sees_only_its_own_part_of_the_tree(machine: Machine) -> None:
    machine.process_in("4:memory:/docker/0123abcd\n")
    machine.v1("", 2 * GIB, usage=GIB)
    assert machine.limit().kind == "cgroup"
    assert machine.tightest() == Room("container", 2 * GIB, GIB)


def test_v1_and_v2_mixed(machine: Machine) -> None:
    machine.process_in("4:memory:/job\n0::/job\n")
    machine.v1("job", 8 * GIB, usage=GIB)
    machine.v2("job", str(3 * GIB), usage=2 * GIB, root="unified")
    assert (machine.tightest().limit_bytes, machine.tightest().used_bytes) == (3 * GIB, 2 * GIB)


@pytest.mark.parametrize("setting", ["max", str(HOST_TOTAL + GIB)])
def test_without_a_smaller_limit_the_host_s_total_applies(machine: Machine, setting: str) -> None:
    machine.process_in("0::/job\n")
    machine.v2("job", setting, usage=GIB)
    assert (machine.limit().kind, machine.limit().limit_bytes) == ("host", HOST_TOTAL)
    assert machine.tightest() == Room("host", HOST_TOTAL, 10 * GIB)


def test_a_machine_without_control_groups(machine: Machine) -> None:
    assert machine.limit().kind == "host"


def test_pressure_comes_from_the_level_whose_limit_applies(machine: Machine) -> None:
    machine.process_in("0::/job/step\n")
    (machine.v2("job", str(GIB)) / "memory.pressure").write_text("some avg10=2.00 ")
    (machine.v2("job/step", "max") / "memory.pressure").write_text("some avg10=1.00 ")
    assert machine.limit().pressure.read_bytes().startswith(b"some avg10=2.00")


def test_on_this_machine_it_agrees_with_psutil_or_a_smaller_limit() -> None:
    limit = MemoryLimit()
    memory = psutil.virtual_memory()
    left = limit.rooms()[0].free_bytes
    assert 0 < left < memory.available + 256 * MIB
    assert limit.limit_bytes <= memory.total
    if limit.kind == "host" and len(limit.rooms()) == 1:
        assert limit.limit_bytes == memory.total
        assert left == pytest.approx(memory.available, abs=256 * MIB)


def test_before_the_kernel_kills_it_drops_page_cache_and_slabs(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    folder = machine.v2("job", str(8 * GIB), usage=8 * GIB, inactive=GIB)
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\nactive_file {GIB}\nslab_reclaimable {GIB}\n")
    machine.v2("", str(9 * GIB), usage=9 * GIB - 1)
    (folder / "memory.high").write_text(f"{4 * GIB}\n")  # there nobody is killed
    deadliest = machine.limit().deadliest()
    assert deadliest == Room("container (memory.max of )", 9 * GIB, 9 * GIB - 6), "5 bytes are active cache"
    machine.v2("", str(99 * GIB), usage=9 * GIB - 1)
    assert machine.limit().deadliest() == Room("container", 8 * GIB, 5 * GIB)


def test_of_v1_the_cache_of_the_groups_below_is_dropped_too(machine: Machine) -> None:
    machine.process_in("4:memory:/job\n")
    folder = machine.v1("job", 8 * GIB, usage=8 * GIB)
    stat = f"active_file 7\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n"
    (folder / "memory.stat").write_text(stat)
    assert machine.limit().deadliest() == Room("container", 8 * GIB, 6 * GIB)


def test_a_machine_without_groups_has_no_limit_at_which_a_process_is_killed_for_its_group(machine: Machine) -> None:
    machine.process_in("0::/\n")
    assert machine.limit().deadliest() is None
