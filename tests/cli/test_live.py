"""`forgather-mem live`, as a person types it: in a pipe, and in a terminal until the training ends."""

import contextlib
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.commands import environment, in_a_process
from tests.reporting.report_fixtures import all_well, text_of, written
from tests.reporting.test_live import here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "out" / "forgather_mem" / "20261120-120000").mkdir(parents=True)
    return made


def test_into_a_pipe_it_prints_a_running_training_once_and_of_an_ended_one_the_report(
    tmp_path: Path, folder: Path
) -> None:
    ring = here(folder)
    done = in_a_process("live", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("== forgather-mem live == train.py == step 20, backward, ")
    assert "\x1b" not in done.stdout
    ring.state(20, "other", "finished")
    ring.close()
    written(all_well(), folder)
    done = in_a_process("live", "out", cwd=tmp_path)
    assert done.stdout == text_of(all_well()) + "\n"


def test_in_a_terminal_it_follows_the_training_until_it_ends_and_shows_the_report(folder: Path) -> None:
    ring = here(folder)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "forgather_mem", "live", str(folder)]
    live = subprocess.Popen(command, env={**environment(), "TERM": "xterm"}, stdout=theirs)
    os.close(theirs)
    shown = b""
    while b"step 20, backward" not in shown:
        shown += os.read(ours, 4096)
    ring.state(21, "forward")
    while b"step 21, forward" not in shown:
        shown += os.read(ours, 4096)
    written(all_well(), folder)
    ring.state(21, "other", "finished")
    ring.close()
    stop = threading.Timer(60, live.kill)
    stop.start()
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while True:
            shown += os.read(ours, 4096)
    stop.cancel()
    assert live.wait() == 0
    assert "No leak" in shown.decode()
    os.close(ours)
