"""`forgather-mem demo`, as a person types it: real trainings of a few steps in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.forked import SCRIPTS, Forked

COMMAND = [sys.executable, "-m", "forgather_mem", "demo"]
SMALL = ["--set", "hidden_size=32", "--set", "num_layers=1", "--set", "block_size=32", "--set", "batch_size=2"]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGATHER_MEM", "COLUMNS"))}
    return {**kept, "OMP_NUM_THREADS": "1"}


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def cell(output: str, label: str) -> str:
    """What stands behind a label of the table."""
    found = re.search(rf"^{re.escape(label)}  +(.*)$", output, re.MULTILINE)
    assert found, f"{label} is not in:\n{output}"
    return found[1].strip()


@pytest.mark.fresh
def test_the_demo_trains_and_shows_where_the_memory_went(tmp_path: Path) -> None:
    arguments = ["demo", "--steps", "6", *SMALL, "--logging-dir", "my events"]
    code, output, errors = Forked(SCRIPTS / "forgather-mem", arguments, tmp_path, environment()).wait()
    assert code == 0, errors
    assert "6 steps in" in output
    start, end, growth, peak, at = re.split(r"  +", cell(output, "host"))
    assert all(size.endswith(("MiB", "GiB")) for size in (start, end, peak))
    assert growth[0] in "+-"
    assert re.fullmatch(r"step \d, \w+", at)
    # embeddings twice, q k v o, three of the MLP, three norms; 4 bytes each, and Adam keeps two copies
    parameters = 4 * (2 * 256 * 32 + 4 * 32 * 32 + 3 * 32 * 96 + 3 * 32)
    assert cell(output, "parameters") == cell(output, "gradients") == f"{parameters / 1024:.1f} KiB"
    assert float(cell(output, "optimizer").split()[0]) == pytest.approx(2 * parameters / 1024, abs=0.2)
    assert float(cell(output, "activations").split()[0]) >= 0  # 0 where free memory of the heap was enough for them
    assert cell(output, "our collections").startswith("3 in ")  # one at the end of each epoch
    assert re.search(r"^our own cost +[\d,]+ ms \(\d+\.\d % of the run\)", output, re.MULTILINE)
    assert "tensorboard --logdir 'my events'" in output
    assert max(len(line) for line in output.splitlines()) <= 80
    assert output.isascii()
    assert "{" not in output  # the trainer's lines of losses
    assert errors.splitlines() == ["forgather-mem demo: loading; press Ctrl-C to stop early and see the table so far"]


@pytest.mark.fresh
def test_a_template_of_callbacks_trains_the_demo_and_its_losses_and_memory_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        '-- extends "callbacks/memory.yaml"\n\n[callback_list]\n    == super()\n    gc: null\n'
    )
    arguments = ["demo", "--template", "mine.yaml", "--steps", "6", *SMALL]
    code, said, errors = Forked(SCRIPTS / "forgather-mem", arguments, tmp_path, environment()).wait()
    assert code == 0, errors
    assert cell(said, "our collections") == "none"
    folder = Path(cell(said, "events in"))
    assert folder.parent == Path("out/demo/runs")
    assert cell(said, "show them") == f"tensorboard --logdir {folder}"
    events = EventAccumulator(str(tmp_path / folder)).Reload()
    expected = {"train/loss", "eval/loss", "mem_host/rss_gib", "mem_phase_host/backward_gib"}
    assert expected <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("mem_host/rss_gib")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.soak
def test_ctrl_c_ends_the_training_with_the_table_so_far(tmp_path: Path) -> None:
    arguments = ["--steps", "100000", *SMALL, "--logging-dir", "events"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_steps(tmp_path / "events", process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "Warning" not in errors
    steps = re.search(r"([\d,]+) steps? in .*, interrupted", output)
    assert steps, output
    assert 1 <= int(steps[1].replace(",", "")) < 100_000
    assert cell(output, "show them") == "tensorboard --logdir events"
    assert EventAccumulator(str(tmp_path / "events")).Reload().Scalars("mem_host/rss_gib")


def wait_for_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if folder.is_dir() and "mem_host/rss_gib" in EventAccumulator(str(folder)).Reload().Tags()["scalars"]:
            return
        time.sleep(0.5)
    raise AssertionError("no step within four minutes")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--template", "configs/demmo.yaml"], 1, "configs/demo.yaml"),
        (["--set", "stepps=3"], 1, "did you mean 'steps'"),
        (["--set", "steps"], 2, "KEY=VALUE"),
        (["--steps", "0"], 2, "steps"),
    ],
)
def test_a_mistake_is_answered_with_one_message(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = demo(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
