"""`forgather-mem demo`, as a person types it: real trainings of a few steps in processes of their own."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers.trainer_callback import CallbackHandler, PrinterCallback
from transformers.trainer_callback import ProgressCallback as TransformersBar

from forgather_mem.cli.demo import _train
from tests.events import scalars
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


def part(output: str, name: str) -> float:
    """The size of a part of the peak, in KiB."""
    found = re.search(rf"\b{name}\s+([\d.]+) (B|KiB|MiB)", output)
    assert found, f"{name} is not in:\n{output}"
    return float(found[1]) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024}[found[2]]


@pytest.mark.fresh
def test_the_demo_trains_and_shows_where_the_memory_went(tmp_path: Path) -> None:
    arguments = ["demo", "--steps", "6", *SMALL, "--logging-dir", "my events"]
    code, output, errors = Forked(SCRIPTS / "forgather-mem", arguments, tmp_path, environment()).wait()
    assert code == 0, errors
    assert " 6 steps, " in output.splitlines()[1]
    assert re.search(r"^  host +\d\.\d\d +\d\.\d\d +\d\.\d\d  step \d, \w+", output, re.MULTILINE)
    # embeddings twice, q k v o, three of the MLP, three norms; 4 bytes each, and Adam keeps two copies
    parameters = 4 * (2 * 256 * 32 + 4 * 32 * 32 + 3 * 32 * 96 + 3 * 32) / 1024
    assert part(output, "parameters") == part(output, "gradients") == pytest.approx(parameters, abs=0.05)
    assert part(output, "optimizer") == pytest.approx(2 * parameters, abs=0.2)
    assert "our 3 collections took" in output  # one at the end of each epoch
    assert re.search(r"^OWN COST +\d+\.\d % of the run", output, re.MULTILINE)
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
    assert "our 3 collections" not in said
    found = re.search(r"tensorboard --logdir (out/demo/runs/\S+)", said)
    assert found, said
    points = scalars(tmp_path / found[1])
    assert {"train/loss", "eval/loss", "mem_phase_host/backward_gib"} <= set(points)
    assert [step for step, _ in points["mem_host/rss_gib"]] == [1, 2, 3, 4, 5, 6]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shows"), [(Terminal(), ["ProgressCallback"]), (io.StringIO(), [])])
def test_on_a_terminal_our_bar_is_in_the_place_of_what_the_trainer_prints(
    stream: io.StringIO, shows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = CallbackHandler([PrinterCallback, TransformersBar], None, None, None, None)
    trainer = SimpleNamespace(
        add_callback=handler.add_callback,
        remove_callback=handler.remove_callback,
        callback_handler=handler,
        train=lambda: None,
    )
    monkeypatch.setattr("sys.stderr", stream)
    assert _train(trainer) == 0
    assert [type(callback).__name__ for callback in handler.callbacks] == shows
    assert not any(isinstance(callback, TransformersBar) for callback in handler.callbacks)


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
