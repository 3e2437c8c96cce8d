"""A process is told from every other that had its number."""

import ast
import inspect
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.cli.command import Command
from forgather_mem.launch.sampler import Sampler
from forgather_mem.system import cgroups, procfs
from forgather_mem.system import process_start as module
from forgather_mem.system.process_start import is_process_running, process_start
from tests.programs import printed_by


def test_a_process_number_that_was_given_out_again_is_another_process() -> None:
    host, start = socket.gethostname(), process_start()
    boot, space, ticks = start.split()
    assert is_process_running(os.getpid(), host, start) is True
    assert is_process_running(os.getpid(), host, f"{boot} {space} {int(ticks) - 1}") is False
    assert is_process_running(os.getpid(), host, f"another {space} {ticks}") is False, "the machine was started anew"
    assert is_process_running(os.getpid(), host, f"{boot} pid:[1] {ticks}") is None, "a number of another container"
    assert is_process_running(os.getpid(), host, "") is None
    assert is_process_running(2**22 + 5, host, "") is False


def test_a_process_that_has_ended_and_was_not_waited_for_is_gone() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_process_running(child, socket.gethostname(), process_start(child)) is False
    os.waitpid(child, 0)


def test_the_age_of_a_process_is_the_time_since_it_was_started() -> None:
    module = "forgather_mem.system.process_start"
    code = f"import time; time.sleep(0.3); from {module} import process_age_s; print(process_age_s())"
    began_s = time.monotonic()
    assert 0.3 <= float(printed_by(code)) <= time.monotonic() - began_s + 0.02


def _asked_of_the_kernel(root: Path) -> None:
    """Each reader of kernel files that a waiting parent has, of a process whose folder is this."""
    pid: Any = f"..{root}"
    module.process_header(pid, "train.py", [])
    assert module.process_age_s(pid) is None or module.process_start(pid)
    assert not module.is_process_running(pid, os.uname().nodename, process_start())
    module.boot_id(str(root))
    assert module.cpu_s(pid) == 0
    assert {version for _, version in cgroups.memory_groups(str(root), str(root))} <= {1, 2}
    assert cgroups.kills_since(cgroups.kill_counter(str(root), str(root)), str(root)) in (None, 0)
    assert cgroups.shared_bytes(str(root), str(root)) == 0
    assert not procfs.is_named(root, "pt_data_worker")
    procfs.child_pids(root)
    assert procfs.kib_fields((root / "stat").read_bytes()) == {}
    Sampler(None, pid, Command(["train.py"], "train.py", [])).look()


# Those that raise what their callers expect
_RAISE = {"stat_fields", "read_once", "anonymous_bytes", "own_memory"}


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"7", b"7 (a", b"7 (a) S", b"7 (a) S x", b"\xff\xfe:\xff", b"x: y kB", b"::", b"- -1 x", b"0::/\xff"],
)
def test_empty_and_odd_texts_of_the_kernel_end_no_waiting_parent(tmp_path: Path, text: bytes) -> None:
    files = "stat", "statm", "comm", "vmstat", "self/cgroup", "task/1/children", "sys/kernel/random/boot_id"
    for file in map(tmp_path.joinpath, files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/pid").symlink_to("pid:[1]")
    _asked_of_the_kernel(tmp_path)


def test_each_reader_of_a_waiting_parent_is_asked_with_odd_texts() -> None:
    readers = {
        function.name
        for one in (module, cgroups, procfs)
        for function in ast.parse(inspect.getsource(one)).body
        if isinstance(function, ast.FunctionDef)
        and ("/proc" in ast.unparse(function) or "proc_root" in ast.unparse(function))
    }
    assert [name for name in readers - _RAISE if f".{name}(" not in inspect.getsource(_asked_of_the_kernel)] == []
