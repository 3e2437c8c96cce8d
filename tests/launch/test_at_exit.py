"""What a process without a Trainer reports at its end."""

import atexit
import os
from pathlib import Path

import pytest
import torch

from forgather_mem.launch.at_exit import watch_process
from forgather_mem.reporting.build import FILE_NAME
from forgather_mem.reporting.run_dir import read_run
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.report_schema import read_report


def ended_process(num_bytes: int) -> int:
    """A process that has allocated so much, and ends as Python does; its number."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return pid
    atexit._clear()
    watch_process()
    held = torch.ones(num_bytes // 4)
    atexit._run_exitfuncs()
    del held
    os._exit(0)


@pytest.mark.fresh
def test_the_larger_of_two_processes_is_the_one_that_is_told_of(session: Path) -> None:
    sizes = []
    for mib in (32, 128, 32):
        ended_process(mib * 2**20)
        report, _ = read_report(session / FILE_NAME)
        sizes.append(report.host.rss_peak_bytes)
    assert sizes[1] - sizes[0] == pytest.approx(96 * 2**20, rel=0.1)
    assert sizes[2] == sizes[1]
    assert read_run(session)["run"]["end"] == "finished"
    assert run_session.noted(str(session), run_session.TORCH)


@pytest.mark.fresh
def test_a_process_of_a_training_leaves_the_report_to_that(session: Path) -> None:
    run_session.register(str(session / "training"), "ring.rank0")
    ended_process(2**20)
    assert not (session / FILE_NAME).exists()
