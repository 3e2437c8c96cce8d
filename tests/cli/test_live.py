"""`forgather-mem live`, as a person types it: in a pipe, and in a terminal until the training ends."""

import contextlib
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from tests.reporting.report_fixtures import all_well, text_of, written
from tests.reporting.test_live import here

COMMAND = [sys.executable, "-m", "forgather_mem", "live", "out"]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FORGATHER_MEM", "COLUMNS"))}


def test_into_a_pipe_it_prints_a_running_training_once_and_of_an_ended_one_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "forgather_mem" / "20261120-120000"
    folder.mkdir(parents=True)
    ring = here(folder)
    done = subprocess.run(COMMAND, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("== forgather-mem live == train.py == step 20, backward, ")
    assert "\x1b" not in done.stdout
    ring.state(20, "other", "finished")
    ring.close()
    written(all_well(), folder)
    done = subprocess.run(COMMAND, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == text_of(all_well()) + "\n"


def test_in_a_terminal_it_follows_the_training_until_it_ends_and_shows_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "forgather_mem" / "20261120-120000"
    folder.mkdir(parents=True)
    ring = here(folder)
    ours, theirs = pty.openpty()
    live = subprocess.Popen(COMMAND, cwd=tmp_path, env={**environment(), "TERM": "xterm"}, stdout=theirs)
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
