"""What the template commands print on a terminal, and into a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import in_a_process


@pytest.mark.parametrize("argv", [["pp", "train.yaml"], ["graph", "train.yaml"], ["targets", "train.yaml"], ["ls"]])
def test_a_terminal_gets_colours_and_a_pipe_gets_none(here, argv):
    plain = in_a_process(*argv, cwd=here)
    assert plain.returncode == 0
    assert "\x1b" not in plain.stdout
    leader, follower = pty.openpty()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-m", "forgather_mem", *argv], cwd=here, env=environment, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                shown += (piece := os.read(leader, 65536))
            except OSError:
                break
            if not piece:
                break
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[" in shown or argv[0] == "graph"
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert [line.rstrip() for line in text.rstrip().splitlines()] == [
        line.rstrip() for line in plain.stdout.rstrip().splitlines()
    ]


def test_a_reader_that_leaves_early_is_no_error_message(here):
    (here / "long.yaml").write_text("\n".join(f"k{i}: {i}" for i in range(50_000)))
    root = str(Path(__file__).parents[2])
    command = f"{sys.executable} -m forgather_mem pp long.yaml | head -1"
    done = subprocess.run(
        command, shell=True, cwd=here, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert done.stdout == "k0: 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
