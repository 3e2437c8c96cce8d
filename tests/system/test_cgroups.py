"""The kernel's counter of out-of-memory kills, on machines made of files."""

from pathlib import Path

import pytest

from forgather_mem.system.cgroups import kill_counter, kills_since, memory_groups, shared_bytes
from tests.system import test_memory_limit as memory_limit


class Machine(memory_limit.Machine):
    """One with a boot and the counters of its groups."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.proc / "sys" / "kernel" / "random").mkdir(parents=True)
        self.boot("first")

    def boot(self, name: str) -> None:
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{name}\n")

    def write(self, path: str, text: str) -> Path:
        file = self.cgroup / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def counter(self) -> dict[str, object]:
        return kill_counter(str(self.proc), str(self.cgroup))

    def since(self, counter: dict[str, object]) -> int | None:
        return kills_since(counter, str(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("0::/job/step\n", "job/step/memory.events"),
        ("9:name=systemd:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("0::/../../elsewhere\n", "memory.events"),
        ("0::/of/the/host\n", "memory.events"),
    ],
)
def test_kills_are_counted_in_the_group_of_this_process(machine: Machine, lines: str, path: str) -> None:
    machine.process_in(lines)
    file = machine.write(path, "low 0\noom 5\noom_kill 2\noom_group_kill 0\n")
    before = machine.counter()
    assert (before["count"], before["whose"]) == (2, "cgroup")
    assert machine.since(before) == 0
    file.write_text("low 0\noom 9\noom_kill 3\noom_group_kill 1\n")
    assert machine.since(before) == 1


def test_without_a_group_the_machines_own_counter_serves(machine: Machine) -> None:
    machine.process_in("0::/\n")
    (machine.proc / "vmstat").write_text("nr_free_pages 7\noom_kill 4\n")
    before = machine.counter()
    assert (before["count"], before["whose"]) == (4, "host")
    (machine.proc / "vmstat").write_text("nr_free_pages 7\noom_kill 6\n")
    assert machine.since(before) == 2


@pytest.mark.parametrize(
    ("lines", "path", "text"),
    [
        ("0::/job\n", "job/memory.stat", "anon 300\nfile 9\nshmem 70\n"),
        ("4:memory:/job\n", "memory/job/memory.stat", "shmem 2\ntotal_shmem 70\n"),
    ],
)
def test_a_group_tells_what_its_processes_share(machine: Machine, lines: str, path: str, text: str) -> None:
    machine.process_in(lines)
    assert shared_bytes(str(machine.proc), str(machine.cgroup)) == 0, "nobody tells"
    machine.write(path, text)
    assert shared_bytes(str(machine.proc), str(machine.cgroup)) == 70


def test_another_group_or_another_boot_tells_nothing(machine: Machine) -> None:
    machine.process_in("0::/job\n")
    file = machine.write("job/memory.events", "oom_kill 2\n")
    before = machine.counter()
    machine.boot("second")
    assert machine.since(before) is None
    machine.boot("first")
    assert machine.since(before) == 0
    new = machine.write("job/new", "oom_kill 9\n")
    new.replace(file)  # the container was begun anew
    assert machine.since(before) is None
    file.unlink()
    assert machine.since(before) is None


def test_a_kernel_that_counts_nothing_gives_nothing(machine: Machine) -> None:
    assert machine.counter() == {}
    machine.process_in("0::/job\n")
    machine.write("job/memory.events", "low 0\n")
    machine.write("memory.events", "oom_kill many\n")
    assert machine.counter() == {}
    assert machine.since({}) is None


def test_groups_come_innermost_first(machine: Machine) -> None:
    machine.process_in("4:memory:/a/b\n0::/\n")
    root = machine.cgroup
    assert list(memory_groups(str(machine.proc), str(root))) == [
        (f"{root}/memory/a/b", 1), (f"{root}/memory/a", 1), (f"{root}/memory", 1), (f"{root}", 2),
    ]  # fmt: skip


def test_this_machine_counts_a_real_number() -> None:
    counter = kill_counter()
    if not counter:
        pytest.skip("this kernel has no counter of out-of-memory kills")
    assert kills_since(counter) == 0
