"""What the parent sees of a command from outside."""

import inspect
import os
import signal
import subprocess
import time
from dataclasses import fields
from pathlib import Path

from forgather_mem.cli.command import Command
from forgather_mem.formats.ring import read_ring
from forgather_mem.launch.sampler import Sampler
from forgather_mem.launch.waiting import Ended
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.system.process_start import process_header
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report_part import RunHeader
from tests.launch.commands import JUDGED, python, watched
from tests.launch.processes import Waiting
from tests.launch.scripts import script

OF_A_TRAINING = {
    "rank", "world_size", "versions", "limit_bytes", "limit_kind", "step", "started_with", "startup", "folder",
    "event_folder", "micro_batches", "setup_s", "setup_bytes", "is_observed", "counts_passes", "tick_s", "plan",
    "worker",
}  # fmt: skip


def test_without_a_step_it_says_so(folder: Path) -> None:
    report = watched([script(folder, "exits with 3")], folder).report
    assert "\nNo training step was seen; these numbers are for the whole process.\n" in report
    assert "OWN COST" not in report


def test_parent_and_child_killed_together_are_told_by_the_folder(folder: Path) -> None:
    waiting = Waiting(folder, JUDGED)
    child = waiting.child()
    os.kill(waiting.process.pid, signal.SIGKILL)
    assert waiting.result().code == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the script outlives its parent, as it would not alone"
        time.sleep(0.01)
    report = read_run(folder)
    assert report["run"]["end"] == "killed"
    assert report["run"]["script"] == "waits.py"
    (ring,) = folder.glob("forgather_mem/*/ring.rank0")
    assert read_ring(ring).header["pid"] == child


def test_it_keeps_the_first_the_last_and_the_highest_size(tmp_path: Path) -> None:
    grow = "print(flush=True); input(); x = b'x' * 2**25; print(flush=True); input(); del x; print(flush=True); input()"
    with subprocess.Popen(python("-c", grow), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sampler = Sampler(str(tmp_path), process.pid, Command(["grow.py", "-x"], "grow.py", ["-x"]))
        firsts = []
        for _ in range(3):
            assert process.stdout.readline() == "\n"
            sampler.look()
            firsts.append(sampler.first_bytes)
            process.stdin.write("\n")
            process.stdin.flush()
    sampler.look()  # it is gone
    assert len(set(firsts)) == 1
    assert abs(sampler.last_bytes - sampler.first_bytes) < 2**23
    sampler.end(Ended(0, 1.0, 0))
    ring = read_ring(tmp_path / run_session.WAITING_RING)
    assert (ring.header["pid"], ring.header["script"], ring.header["argv"]) == (process.pid, "grow.py", ["-x"])
    assert 0 < ring.header["started_s"] - ring.header["process_started_s"] < 60
    assert {one.name for one in fields(RunHeader)} - ring.header.keys() == OF_A_TRAINING, (
        "`process_header` has a fact of any process; what only a training knows is named here"
    )
    assert "environ" not in inspect.getsource(process_header), "the waiting parent has no variable of its child's"
    assert ring.state.end == "finished"
    peak_bytes = ring.samples[-1].values["host/rss_peak_bytes"]
    assert 2**25 - 2**20 <= peak_bytes - sampler.first_bytes < 2**25 + 2**23
