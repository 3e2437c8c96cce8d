"""What is known of a training apart from its records, and the folder for its files; ranks are in `test_rank_store`."""

import os
import platform
import resource
import socket
import subprocess
import sys
import time
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch import multiprocessing

from forgather_mem.engine.facts import current_device, finish_facts, header_of, run_folder, sizes_now, training_key
from forgather_mem.engine.summary import RunFacts
from forgather_mem.system.process_start import process_header
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.testing.small_run import in_child
from forgather_mem.units import GIB, MIB
from tests.memory import status_bytes
from tests.simulated_device import TOTAL_MIB, simulated_device

# Of a header what is known later, tests of a whole run compare; kills: tests/system/test_cgroups.py, of a faked root;
# of a worker a test below
LATER = {
    "folder", "event_folder", "is_observed", "counts_passes", "tick_s", "setup_s", "setup_bytes", "plan", "startup",
    "started_with", "kills", "worker",
}  # fmt: skip


def test_each_fact_of_a_header_is_what_another_source_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "5"])
    before, data = resource.getrlimit(resource.RLIMIT_DATA), status_bytes("VmData") + GIB
    now_s, process = time.time(), psutil.Process()
    resource.setrlimit(resource.RLIMIT_DATA, (data, before[1]))
    try:
        header = header_of(SimpleNamespace(process_index=2, world_size=4, gradient_accumulation_steps=3), 5)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    boot, ticks = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/stat").read_text()
    packages = "forgather_mem", "torch", "transformers", "accelerate"
    expected = {
        "rank": 2, "world_size": 4, "micro_batches": 3, "step": 5, "script": "train.py", "argv": ("--steps", "5"),
        "pid": process.pid, "host": socket.gethostname(), "limit_bytes": data, "limit_kind": "RLIMIT_DATA",
        "process": f"{boot} {os.readlink('/proc/self/ns/pid')} {ticks.rpartition(')')[2].split()[19]}",
        "started_s": pytest.approx(now_s, abs=1), "process_started_s": pytest.approx(process.create_time(), abs=2),
        "versions": {name: metadata.version(name) for name in packages if name in sys.modules}
        | {"python": platform.python_version()},
    }  # fmt: skip
    assert {one.name for one in fields(RunHeader)} - LATER == expected.keys(), (
        "a new fact: what does another source say?"
    )
    assert not any(value in (0, "", ()) for value in expected.values()), (
        "0 proves nothing: where this machine has it so, it is read from a faked root"
    )
    assert {name: getattr(header, name) for name in expected} == expected


def tell_worker(rank: int, told: Any) -> None:
    told.put((rank, header_of(SimpleNamespace()).worker))


def test_a_worker_is_called_by_its_rank_and_any_other_process_by_its_name() -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    multiprocessing.start_processes(tell_worker, (told,), nprocs=2, start_method="fork")
    other = context.Process(target=tell_worker, args=(9, told), name="trial")
    other.start()
    other.join()
    assert {told.get() for _ in range(3)} == {(0, "rank 0"), (1, "rank 1"), (9, "trial")}


# Of the moment of the header, which its docstring says, or by its clock; nothing else changes while a process lives
OF_THE_BEGINNING = {"started_s", "process_started_s", "limit_bytes", "limit_kind", "kills"}


def test_a_fact_of_a_header_does_not_change_later() -> None:
    def child() -> str:
        limits = {resource.RLIMIT_AS: 2**40, resource.RLIMIT_NOFILE: 512, resource.RLIMIT_STACK: 2**20}
        headers: list[dict[str, object]] = []
        for _ in range(2):
            headers.append({**process_header(os.getpid(), "train.py", []), **header_of(None).plain()})
            os.nice(3), os.chdir("/"), os.umask(0o77), os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            for name in ("oom_score_adj", "comm"):
                Path(f"/proc/self/{name}").write_text("500")
            for limit, most in limits.items():
                resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
        changed = {name for name in headers[0] | headers[1] if headers[0].get(name) != headers[1].get(name)}
        return " ".join(changed - OF_THE_BEGINNING)

    known = in_child(child)
    assert known == "", f"{known}: what can change is a metric, whose last reading a killed run has, too"


@pytest.mark.parametrize(
    ("words", "script"),
    [(["-m", "tool.train"], "tool.train"), (["-m", "tool"], "tool"), (["tool/train.py"], "tool/train.py"),
     (["tool"], "tool")],
)  # fmt: skip
def test_a_module_is_told_by_its_name_and_a_script_by_its_path(tmp_path: Path, words: list[str], script: str) -> None:
    (tmp_path / "tool").mkdir()
    for name in ("__init__", "__main__", "train"):
        told = "from forgather_mem.system.process_start import what_runs; print(what_runs())"
        (tmp_path / f"tool/{name}.py").write_text(told)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (set(done.stdout.splitlines()), done.stderr) == ({script}, "")


def test_a_loop_without_arguments_has_the_launchers_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (header_of(None).rank, header_of(None).world_size, header_of(None).micro_batches) == (1, 2, 1)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert (header_of(None).rank, header_of(None).world_size) == (0, 1)


def test_sizes_before_the_first_step_are_the_processs_and_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sizes_now()
    assert sizes["host/rss_bytes"] == pytest.approx(status_bytes("VmRSS"), abs=2 * MIB)
    assert set(sizes) == {"host/rss_bytes", "host/anon_bytes", "host/allocated_bytes", "host/gaps_bytes"}
    with simulated_device(monkeypatch) as device:
        device.hold(100)
        device.hold(70)
        assert sizes_now()["device/allocated_bytes"] == 70 * MIB
        assert sizes_now()["device/reserved_bytes"] == 100 * MIB
        device.broken = "_cuda_memoryStats"
        assert "host/rss_bytes" in sizes_now(), "a device that has failed takes no reading of the host with it"


def test_at_the_end_the_devices_name_is_added_where_one_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = RunFacts()
    finish_facts(facts, "finished", 12.5, None)
    assert (facts.end, facts.wall_s, facts.devices) == ("finished", 12.5, {})
    with simulated_device(monkeypatch) as device:
        device.initialised = False
        assert current_device() is None, "it is not woken"
        device.hold(1)
        assert current_device() == 0
        finish_facts(facts, "oom", 1.0, None)
        assert facts.devices == {}, "the training did not use it"
        finish_facts(facts, "oom", 1.0, 0)
    assert (facts.end, facts.devices) == ("oom", {0: ("Simulated 8", TOTAL_MIB * MIB)})


def test_a_process_alone_asks_no_store_for_its_key() -> None:
    assert training_key(0, 0, 1) == "0.0"
    assert training_key(40, 0, 1) == "40.0"


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_makes_a_folder(tmp_path: Path, rank: int) -> None:
    folder = run_folder(tmp_path, rank, "key")
    assert folder.parent == tmp_path / "forgather_mem"
    assert folder.is_dir() == (rank == 0)
    assert time.strptime(folder.name[:15], "%Y%m%d-%H%M%S")


def test_the_environment_names_another_place_which_may_be_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FORGATHER_MEM_DIR", raising=False)
    assert run_folder(None, 0, "key") is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "forgather_mem").symlink_to(elsewhere)
    assert run_folder(tmp_path, 0, "key") is None
    assert "is a link, and nothing is written through it" in caplog.text
    assert list(elsewhere.iterdir()) == []
    monkeypatch.setenv("FORGATHER_MEM_DIR", str(tmp_path / "forgather_mem"))
    folder = run_folder(None, 0, "key")
    assert folder.parent == elsewhere, "resolved once, at the beginning"


def test_a_folder_that_can_not_be_made_is_named_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "forgather_mem").write_text("a file is in the way")
    folder = run_folder(tmp_path, 0, "key")
    assert not folder.exists()
