"""The examples, each run as its docstring says, and what it leaves behind. (Those on cleaning up: their own file.)"""

import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.events import event_folders, scalars
from tests.forked import Forked, on_ranks

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
Run = Callable[[str], str]

pytestmark = pytest.mark.usefixtures("folder_of_examples")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What an example of this name prints. In this process, which has loaded torch already."""

    def printed(name: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, "out"])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return "".join(capsys.readouterr())

    return printed


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_trainer_with_templates_and_a_report(tmp_path: Path, run: Run) -> None:
    assert "== 12 steps" in run("hf_trainer.py")
    assert len(event_folders(tmp_path)) == 1
    points = scalars(tmp_path)
    assert [step for step, _ in points["grad_norm_total"]] == [4, 8, 12]
    assert [step for step, _ in points["eval-loss"]] == [6, 12]
    assert {"train-loss", "mem_host/rss_gib"} <= set(points)


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_derived_trainer_keeps_its_own_log_lines(run: Run) -> None:
    said = run("trl_like_trainer.py")
    assert re.findall(r"^step (\d): rewards/mean -\d", said, re.M) == ["2", "4", "6"]
    assert "== 6 steps" in said


def test_a_plain_loop(tmp_path: Path, run: Run) -> None:
    said = run("plain_loop.py")
    steps, epochs = re.findall(r"^(\d+) steps, (\d) epochs$", said, re.M)[0]
    assert int(steps) == 4 * int(epochs)
    assert re.search(r"step 1  epoch 0.25  loss \d", said)
    assert [step for step, _ in scalars(tmp_path)["mem_host/rss_gib"]] == list(range(1, int(steps) + 1))


def test_a_loop_with_accelerate(tmp_path: Path, run: Run) -> None:
    assert "8 optimizer steps on 1 processes" in run("accelerate_loop.py")
    points = scalars(tmp_path)
    assert [step for step, _ in points["grad_norm_total"]] == [2, 4, 6, 8]
    assert [step for step, _ in points["mem_host/rss_gib"]] == list(range(1, 9))


def test_callbacks_of_a_users_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    said = run("custom_callbacks.py")
    assert "ended after step 6 of 16" in said
    assert "step 6: eval_loss has not improved 2 times" in said
    assert re.findall(r"^step (\d+): learning rate", said, re.M) == ["4", "6"]
    assert re.findall(r"^step (\d+): (\d+) rows, run=custom$", said, re.M) == [("3", "12"), ("6", "24")]
    assert re.findall(r"^event on_(\w+) at step (\d)", said, re.M) == [
        ("train_begin", "0"), *[("evaluate", step) for step in "246"], ("train_end", "6")
    ]  # fmt: skip
    assert len(re.findall(r"^step \d: loss \d\.\d{4} on 1 processes", said, re.M)) == 3
    assert re.search(r"^step 4 of 16, epoch 1.00, cpu: .*eval_loss", said, re.M)
    best = json.loads((tmp_path / "out" / "best" / "metrics.json").read_text())
    assert best["eval_loss"] > 0
    assert (tmp_path / "out" / "best" / "model.safetensors").is_file()
    if "WandBCallback" in said:
        assert list((tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.fresh
def test_a_notebook_gives_memory_back() -> None:
    pytest.importorskip("IPython", reason="IPython is not installed: pip install ipython")
    notebook = json.loads((EXAMPLES / "notebook_cleanup.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code, out, err = Forked(ROOT / "tests/notebook_child.py", [json.dumps(cells)], ROOT, os.environ).wait()
    assert code == 0, err
    _, _, before, released, after, _ = json.loads(out.splitlines()[-1])
    assert re.search(r"model +16\.0 MiB", before)
    assert re.search(r"Out\[1\] +16\.0 MiB", before)  # with the input, which its graph keeps
    assert re.search(r"error +8\.0 MiB", before)
    assert re.search(r"host [\d.]+ MiB -> [\d.]+ MiB", released)
    assert not re.search(r"(model|Out\[1\]|error) +[\d.]+ MiB", after)
    assert "a trial" in out


@pytest.mark.fresh
def test_two_ranks(tmp_path: Path) -> None:
    """As torchrun starts them: what that does besides is in tests/launch/test_trainings.py."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = on_ranks(EXAMPLES / "two_ranks.py", ["out"], tmp_path, environment)
    said = [out + err for _, out, err in ended]
    assert [code for code, _, _ in ended] == [0, 0], said[0] + said[1]
    assert re.findall(r"^memory.rank(\d).jsonl: lines up to step (\d)", said[0], re.M) == [("0", "8"), ("1", "8")]
    assert "TensorBoard runs: 1" in said[0]
    assert said[0].count("Garbage collection finished") == 2
    assert "step 8/8" in said[0]
    assert "Garbage collection" not in said[1]
    assert "step 8/8" not in said[1]
    assert "mem_ranks/rss_max_gib" in scalars(tmp_path)


def test_every_example_has_a_test() -> None:
    tests = "".join(
        (ROOT / "tests" / name).read_text() for name in ("test_examples.py", "reclaim/test_examples_of_clean_up.py")
    )
    tests += (ROOT / "tests" / "trackers" / "test_monitors.py").read_text()
    for path in (path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")):
        assert path.name in tests
