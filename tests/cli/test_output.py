"""What the template commands print on a terminal, and into a pipe."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def on_a_terminal(argv: list[str], here: Path, columns: int) -> tuple[str, str]:
    """What it shows, and that without colours."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": str(columns)}
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
    return shown.decode(), re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


def test_the_list_of_templates_stays_within_the_terminal(here):
    _, wide = on_a_terminal(["ls"], here, 400)
    _, narrow = on_a_terminal(["ls"], here, 80)
    assert max(map(len, wide.splitlines())) > 120
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split() == wide.split(), "nothing is lost"


@pytest.mark.parametrize(
    "argv",
    [["ls"], ["pp", "--debug", "train.yaml"]]
    + [pytest.param([name, "train.yaml"], marks=pytest.mark.soak) for name in ("graph", "targets")],
)
def test_a_terminal_gets_colours_and_a_pipe_gets_none(cli, here, argv):
    code, plain, _ = cli(*argv)
    assert code == 0
    assert "\x1b" not in plain
    shown, text = on_a_terminal(argv, here, 200)
    assert "\x1b[" in shown or argv[0] == "graph"
    assert [line.rstrip() for line in text.rstrip().splitlines()] == [
        line.rstrip() for line in plain.rstrip().splitlines()
    ]


def test_a_reader_that_leaves_early_is_no_error_message(here):
    (here / "long.yaml").write_text("\n".join(f"k{i}: {i}" for i in range(50_000)))
    command = f"{sys.executable} -m forgather_mem pp long.yaml | head -1"
    done = subprocess.run(
        command, shell=True, cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout == "k0: 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
