from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from forgather_mem.system.memory_limit import MemoryLimit
from forgather_mem.units import GIB, MIB

HOST_TOTAL = 64 * GIB
UNLIMITED_V1 = 9223372036854771712


class Machine:
    """A machine's /proc and /sys/fs/cgroup in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        available = HOST_TOTAL - 10 * GIB
        (self.proc / "meminfo").write_text(f"MemTotal: {HOST_TOTAL // 1024} kB\nMemAvailable: {available // 1024} kB\n")

    def process_in(self, lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text(lines)

    def v2(self, path: str, limit: str, usage: int = 0, inactive: int = 0, root: str = "") -> Path:
        folder = self.cgroup / root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"anon 1\nfile 2\ninactive_file {inactive}\nactive_file 5\n")
        return folder

    def v1(self, path: str, limit: int, usage: int = 0, inactive: int = 0) -> None:
        folder = self.cgroup / "memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
        stat = f"cache 1\ninactive_file 7\nhierarchical_memory_limit 9\ntotal_inactive_file {inactive}\n"
        (folder / "memory.stat").write_text(stat)

    def limit(self) -> MemoryLimit:
        return MemoryLimit(self.proc, self.cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_v2_page_cache_that_can_be_dropped_is_not_use(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    machine.v2("job", str(8 * GIB), usage=3 * GIB, inactive=GIB)
    limit = machine.limit()
    assert (limit.kind, limit.limit_bytes, limit.used_bytes()) == ("cgroup", 8 * GIB, 2 * GIB)


def test_v1_page_cache_of_the_whole_subtree_is_not_use(machine: Machine) -> None:
    machine.process_in("8:pids:/\n4:cpu,memory:/job\n0::/\n")
    machine.v1("", UNLIMITED_V1)
    machine.v1("job", 8 * GIB, usage=3 * GIB, inactive=GIB)
    limit = machine.limit()
    assert (limit.kind, limit.limit_bytes, limit.used_bytes()) == ("cgroup", 8 * GIB, 2 * GIB)


@pytest.mark.parametrize(("outer", "inner"), [(4, 16), (16, 4)])
def test_the_smallest_limit_of_all_ancestors_applies(machine: Machine, outer: int, inner: int) -> None:
    machine.process_in("0::/pod/box/task\n")
    machine.v2("pod", str(outer * GIB), usage=outer * MIB)
    machine.v2("pod/box", "max", usage=7)
    machine.v2("pod/box/task", str(inner * GIB), usage=inner * MIB)
    limit = machine.limit()
    assert limit.limit_bytes == 4 * GIB
    assert limit.used_bytes() == 4 * MIB, "the usage of the level whose limit it is"


def test_of_two_equal_limits_the_outer_one_counts(machine: Machine) -> None:
    machine.process_in("0::/job/step\n")
    machine.v2("job", str(4 * GIB), usage=3 * GIB)
    machine.v2("job/step", str(4 * GIB), usage=GIB)
    assert machine.limit().used_bytes() == 3 * GIB


def test_a_container_that_sees_only_its_own_part_of_the_tree(machine: Machine) -> None:
    machine.process_in("4:memory:/docker/0123abcd\n")
    machine.v1("", 2 * GIB, usage=GIB)
    limit = machine.limit()
    assert (limit.kind, limit.limit_bytes, limit.used_bytes()) == ("cgroup", 2 * GIB, GIB)


def test_a_path_outside_of_the_namespace_ends_at_the_mount(machine: Machine) -> None:
    machine.process_in("0::/../../elsewhere\n")
    machine.v2("", str(2 * GIB), usage=GIB)
    assert machine.limit().limit_bytes == 2 * GIB


def test_v1_and_v2_mixed(machine: Machine) -> None:
    machine.process_in("4:memory:/job\n0::/job\n")
    machine.v1("job", 8 * GIB, usage=GIB)
    machine.v2("job", str(3 * GIB), usage=2 * GIB, root="unified")
    limit = machine.limit()
    assert (limit.limit_bytes, limit.used_bytes()) == (3 * GIB, 2 * GIB)


@pytest.mark.parametrize("setting", ["max", str(HOST_TOTAL + GIB)])
def test_without_a_smaller_limit_the_host_s_total_applies(machine: Machine, setting: str) -> None:
    machine.process_in("0::/job\n")
    machine.v2("job", setting, usage=GIB)
    limit = machine.limit()
    assert (limit.kind, limit.limit_bytes, limit.used_bytes()) == ("host", HOST_TOTAL, 10 * GIB)


def test_a_machine_without_control_groups(machine: Machine) -> None:
    assert machine.limit().kind == "host"


def test_pressure_comes_from_the_level_whose_limit_applies(machine: Machine) -> None:
    machine.process_in("0::/job/step\n")
    (machine.v2("job", str(GIB)) / "memory.pressure").write_text("some avg10=2.00 ")
    (machine.v2("job/step", "max") / "memory.pressure").write_text("some avg10=1.00 ")
    assert machine.limit().pressure.read().startswith(b"some avg10=2.00")


def test_on_this_machine_it_agrees_with_psutil_or_a_smaller_limit() -> None:
    limit = MemoryLimit()
    memory = psutil.virtual_memory()
    if limit.kind == "host":
        assert limit.limit_bytes == memory.total
        assert limit.used_bytes() == pytest.approx(memory.total - memory.available, abs=256 * MIB)
    else:
        assert limit.limit_bytes <= memory.total
        assert 0 < limit.used_bytes() <= limit.limit_bytes
    limit.close()
