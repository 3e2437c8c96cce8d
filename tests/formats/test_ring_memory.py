"""The waiting parent's memory: what a killed process has stored there stands in its ring afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgather_mem.formats.ring import RingState, read_ring
from forgather_mem.formats.ring_memory import PLACE, StateMemory, own_state
from forgather_mem.formats.ring_writer import STATE_EVERY_S, RingWriter
from forgather_mem.telemetry.events import PHASE_NUMBER
from forgather_mem.testing.small_run import in_child

# In a process below another one, as a rank below its launcher: 30 steps at once, then a part of the next one
_RANK = """
import os, signal, sys
from forgather_mem.formats.ring_memory import own_state
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.telemetry.events import PHASE_NUMBER
ring = RingWriter(sys.argv[1], {"rank": 0, "pid": os.getpid()}, own_state)
for step in range(1, 31):
    ring.step_ended(step)
ring.beside.phase = PHASE_NUMBER["backward"]
os.kill(os.getpid(), signal.SIGKILL)
"""
_LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], close_fds=True)"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[StateMemory]:
    made = StateMemory()
    monkeypatch.setenv(PLACE, made.place)
    yield made
    os.close(made._file)


def state_of(folder: Path) -> RingState:
    return read_ring(folder / "ring.rank0").state


def test_a_killed_process_below_a_launcher_is_told_to_its_step_and_phase(tmp_path: Path, memory: StateMemory) -> None:
    path = str(tmp_path / "ring.rank0")
    subprocess.run([sys.executable, "-c", _LAUNCHER, _RANK, path], check=True)
    assert state_of(tmp_path).step < 30, "not each step is written to the file"
    memory.settle([str(tmp_path / "gone"), str(tmp_path)])
    assert state_of(tmp_path)[1:] == (30, "backward", "running")


def test_the_file_has_a_state_from_time_to_time(tmp_path: Path, memory: StateMemory) -> None:
    ring = RingWriter(tmp_path / "ring.rank0", {}, own_state)
    ring.step_ended(1)
    assert state_of(tmp_path).step == 0
    ring._stated_s -= STATE_EVERY_S
    ring.step_ended(2)
    assert state_of(tmp_path).step == 2
    ring.close()


def test_what_has_ended_in_an_orderly_way_stays_as_it_is(tmp_path: Path, memory: StateMemory) -> None:
    ring = RingWriter(tmp_path / "ring.rank0", {}, own_state)
    ring.step_ended(7)
    ring.state(8, "other", "finished")
    memory.settle([str(tmp_path)])
    assert state_of(tmp_path)[1:] == (8, "other", "finished")
    ring.close()
    assert RingWriter(tmp_path / "ring.rank0", {}, own_state).beside is not None, "its place is free again"


def test_of_two_trainings_in_a_process_the_second_writes_each_state(tmp_path: Path, memory: StateMemory) -> None:
    first = RingWriter(tmp_path / "ring.rank1", {"rank": 1}, own_state)
    second = RingWriter(tmp_path / "ring.rank0", {"rank": 0}, own_state)
    assert (first.beside is None, second.beside is None) == (False, True)
    second.state(3, "forward")
    assert state_of(tmp_path)[1:3] == (3, "forward")
    first.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_stores_nothing(tmp_path: Path, memory: StateMemory) -> None:
    ring = RingWriter(tmp_path / "ring.rank0", {}, own_state)
    ring.step_ended(1)
    assert in_child(lambda: ring.step_ended(2) or ring.close()) is None
    memory.settle([str(tmp_path)])
    assert state_of(tmp_path).step == 1
    ring.close()


@pytest.mark.parametrize("place", ["", "nonsense", "1:2", "999999999:3:4"])
def test_without_the_memory_each_state_is_written(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, place)
    assert own_state(b"\0" * 16) is None


def test_another_file_with_the_descriptors_number_is_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "theirs", "w+b") as file:
        file.truncate(2**20)
        inode = os.fstat(file.fileno()).st_ino
        for told in (inode, inode + 1):
            monkeypatch.setenv(PLACE, f"{os.getpid()}:{file.fileno()}:{told}")
            assert own_state(b"\0" * 16) is None


def test_nobody_can_cut_it_short(memory: StateMemory) -> None:
    for size in (0, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(memory._file, size)


def test_what_is_no_ring_stays_as_it_is(tmp_path: Path, memory: StateMemory) -> None:
    ring = RingWriter(tmp_path / "ring.rank0", {}, own_state)
    (tmp_path / "ring.rank1").write_bytes(b"mine")
    (tmp_path / "ring.rank2").symlink_to(tmp_path / "ring.rank0")
    ring.beside.phase = PHASE_NUMBER["save"]
    memory.settle([str(tmp_path)])
    assert (tmp_path / "ring.rank1").read_bytes() == b"mine"
    assert state_of(tmp_path).phase == "save"
    ring.close()


def test_a_kernel_without_such_memory_is_one_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    made = StateMemory()
    assert made.place == ""
    made.settle([str(tmp_path)])  # raises nothing
