"""The trackers that people use, with their real packages and without a network: `make trackers`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.with_trackers.readers import Kept

ROOT = Path(__file__).parents[2]
TRACKERS = ("wandb", "mlflow", "comet_ml", "trackio")
# What the Trainer's callbacks put before the names; none of MLflow's
PREFIX = {"wandb": "train/", "mlflow": "", "comet_ml": "train/", "trackio": "train/"}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="the trackers are not installed: `make trackers` does that"
)


def trained(tracker: str, how: str, folder: Path) -> tuple[list[dict[str, float]], Kept]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "COMET", "MLFLOW"))},
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "TRACKIO_DIR": str(folder / "trackio"),
        "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
        "COMET_START_ONLINE": "0",
        "COMET_DISABLE_AUTO_LOGGING": "1",
        **({"COMET_API_KEY": "0" * 25} if tracker == "comet_ml" else {}),
    }
    said = python("train", tracker, how, folder=folder, environment=environment).stderr
    assert "training continues" not in said, said  # a failure of ours
    kept = python("readers", tracker, folder=folder, environment=environment).stdout
    return json.loads((folder / "history.json").read_text()), Kept(**json.loads(kept.splitlines()[-1]))


def python(module: str, *words: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.with_trackers.{module}", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("tracker", TRACKERS)
def test_each_line_of_the_trainer_is_one_line_there_with_our_numbers(tracker: str, tmp_path: Path) -> None:
    history, kept = trained(tracker, "trainer", tmp_path)
    prefix = PREFIX[tracker]
    assert [line["step"] for line in history] == [2, 3, 4, 6, 6, 6], "of losses and evaluations, and the last"
    assert len(kept.lines) == len(history), "nothing is logged apart from the Trainer's lines, or twice"
    assert kept.steps == sorted(kept.steps), "no step goes backwards"
    for logged, line in zip(history, kept.lines, strict=True):
        ours = {_there(name, prefix): value for name, value in logged.items() if "mem_" in name}
        of_evaluation = "eval_" if "eval_loss" in logged else ""
        for name in ("mem_peak_gib", "mem_headroom_gib"):
            assert ("train_loss" in logged) or _there(of_evaluation + name, prefix) in ours
        assert {name: value for name, value in line.items() if "mem_" in name} == pytest.approx(ours)
    assert f"{prefix}mem_phase_forward_gib" in kept.lines[0]
    assert f"{prefix}mem_tensors_optimizer_gib" in kept.lines[0]
    losses = [line for line in kept.lines if f"{prefix}loss" in line]
    assert len(losses) == 3, "the Trainer's own numbers are there as before"
    check_summary(kept, "finished", max(line.get("mem_peak_gib", 0.0) for line in history))


def _there(name: str, prefix: str) -> str:
    """How the Trainer's callback for a tracker with this prefix of training lines names it."""
    return name.replace("eval_", "eval/", 1) if prefix and name.startswith("eval_") else prefix + name


def check_summary(kept: Kept, end: str, highest: float | None = None) -> None:
    assert kept.summary["mem_run_end"] == end
    assert kept.summary["mem_run_leak"] == "not enough data"
    assert kept.summary["mem_run_report"].startswith("== forgather-mem ==")
    assert float(kept.summary["mem_run_peak_step"]) <= 6
    assert kept.summary["mem_run_peak_phase"]
    if highest is not None:
        assert float(kept.summary["mem_run_peak_gib"]) == pytest.approx(highest, rel=0.05)


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_training_that_fails_tells_it_in_the_summary(tracker: str, tmp_path: Path) -> None:
    history, kept = trained(tracker, "fails", tmp_path)
    assert [line["step"] for line in history] == [2, 3, 4]
    assert len(kept.lines) == 3
    check_summary(kept, "exception")
    if tracker == "trackio":
        assert (kept.summary["title"], kept.summary["level"]) == ("Memory: exception, not enough data", "error")


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_loop_with_accelerate_logs_our_numbers_with_its_own(tracker: str, tmp_path: Path) -> None:
    history, kept = trained(tracker, "accelerate", tmp_path)
    assert [line["step"] for line in history] == kept.steps == [2, 4, 6]
    for logged, line in zip(history, kept.lines, strict=True):
        ours = {name: value for name, value in logged.items() if name.startswith("mem_")}
        assert {"mem_peak_gib", "mem_phase_forward_gib", "mem_tensors_optimizer_gib"} <= set(ours)
        assert {name: value for name, value in line.items() if "mem_" in name} == pytest.approx(ours)
        assert line["loss"] == pytest.approx(logged["loss"])
    check_summary(kept, "finished")


def test_a_plan_tracks_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "train.py").write_text(
        "import comet_ml, mlflow, trackio, wandb\n"
        "from pathlib import Path\n"
        "from tests.training import make_trainer\n"
        "trackers = ['comet_ml', 'mlflow', 'trackio', 'wandb']\n"
        "trainer = make_trainer(Path('out'), report_to=trackers, trackio_space_id=None)\n"
        "comet_ml.start(api_key='0' * 25, project_name='planned')\n"
        "mlflow.set_experiment('planned')\n"
        "mlflow.log_metric('loss', 1.0)\n"
        "trackio.init(project='planned', space_id=None).log({'loss': 1.0})\n"
        "wandb.init(project='planned').log({'loss': 1.0})\n"
        "print('it tracks')\n"
        "trainer.train()\n"
    )
    command = [sys.executable, "-m", "forgather_mem", "plan", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Peak ")
    assert "it tracks" in done.stderr
    made = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert not [
        path for path in made if any(name in path for name in ("wandb", "mlflow", "mlruns", "comet", "trackio"))
    ]
    assert "socket.connect" not in done.stdout
