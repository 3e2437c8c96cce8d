"""What is seen of everybody's training, and what watching changes: writes docs/frameworks.md.

    make recipes
    python benchmarks/frameworks [--only NAME ...] [--keep FOLDER] [--clean]

Each script of this folder has a planted leak, in the line that ends in `# leak: HOLDER`. It runs alone and under
`forgather-mem run`, each time in a fresh copy of this folder; what it prints, leaves and returns is compared, and
holder and line are looked for in the report that is printed. `--clean` runs it watched without that line, too: a leak
is a false alarm then. Rows that were not run stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "frameworks.md"
LEAK = re.compile(r"\S.*# leak: (\w+)$", re.M)
OUR_LINES = re.compile(r"^forgather-mem: .*\n(?: {15}.*\n)*", re.M)  # in the cells of a notebook
VARYING = re.compile(
    r"\d+\.\d+ ?s\b|\d\d:\d\d(:\d\d\S*)?|\d+(\.\d+)? ?it/s|'\w*(_per_second|_runtime|step_time)': '?[\d.]+|/tmp/\S+"
)
OURS = re.compile(r"^mem/|\.mem\.|__pycache__")  # what watching may leave, and Python
LIMIT_S = 300


@dataclass(frozen=True)
class Case:
    """One script.

    Args:
        name: As the table calls it.
        package: Whose version is told, and without which it can't run.
        words: What follows `python`, or a program beside it.
        steps: Optimizer steps it takes, of all its processes and trainings.
        file: Where the leak is planted, if that is not the last of `words`.
        line: What the report calls the line of the leak, if not by file and number.
        takes: What watching it takes from its user.
    """

    name: str
    package: str
    words: str
    steps: int = 240
    file: str = ""
    line: str = ""
    takes: str = "nothing"


CASES = (
    Case("transformers `Trainer`, evaluation, checkpoints", "transformers", "trainer.py"),
    Case("`Seq2SeqTrainer`, `predict_with_generate`", "transformers", "seq2seq.py"),
    Case("TRL `SFTTrainer`", "trl", "trl_sft.py"),
    Case("TRL `DPOTrainer`", "trl", "trl_dpo.py"),
    Case("TRL `GRPOTrainer`", "trl", "trl_grpo.py", 120),
    Case("PEFT LoRA, accumulation", "peft", "peft_lora.py"),
    Case("sentence-transformers", "sentence-transformers", "sentence.py"),
    Case("SetFit", "setfit", "setfit_few_shot.py", 120),
    Case("Accelerate, a loop with accumulation", "accelerate", "accelerate_loop.py"),
    Case("`accelerate launch`, 2 processes", "accelerate", "accelerate launch --cpu --num_processes=2 --main_process_port=0 accelerate_loop.py"),
    Case("`torchrun`, DDP, a leak on rank 1", "torch", "torchrun --standalone --nproc_per_node=2 ddp.py"),
    Case("`torchrun`, FSDP2", "torch", "torchrun --standalone --nproc_per_node=2 fsdp2.py"),
    Case("Lightning, validation, checkpoints", "lightning", "lightning_fit.py"),
    Case("pytorch-lightning, two optimizers by hand", "pytorch-lightning", "lightning_gan.py", 480),
    Case("Lightning Fabric", "lightning", "fabric_loop.py"),
    Case("Forgather's own `Trainer`, evaluation, checkpoints", "torchdata", "forgather_trainer.py"),
    Case("Keras 3 on torch", "keras", "keras_fit.py"),
    Case("skorch", "skorch", "skorch_fit.py"),
    Case("PyTorch-Ignite, evaluation", "pytorch-ignite", "ignite_engine.py"),
    Case("fastai", "fastai", "fastai_fit.py"),
    Case("Stable-Baselines3 PPO", "stable-baselines3", "sb3_ppo.py"),
    Case("as CleanRL: DQN in one file", "gymnasium", "cleanrl_dqn.py"),
    Case("torchrl, tensordict", "torchrl", "torchrl_loss.py"),
    Case("as nanoGPT: accumulation, own evaluation", "torch", "nanogpt.py"),
    Case("as pytorch/examples: a plain loop", "torch", "plain.py"),
    Case("the same, parameters changed by hand", "torch", "by_hand.py"),
    Case("the same in two loops, of which the first leaks", "torch", "two_loops.py", 480),
    Case("Hogwild, two spawned workers", "torch", "hogwild.py", 480),
    Case("`multiprocessing.spawn`, a leak in rank 1", "torch", "mp_spawn.py", 480),
    Case("`ProcessPoolExecutor`, a leak in one trial", "torch", "process_pool.py", 480),
    Case("Optuna, 3 Trainers in one process", "optuna", "optuna_trials.py"),
    Case("a notebook by nbclient", "nbclient", "notebook.py", file="plain.py", line="In[2], line 7"),
    Case("pytest", "pytest", "-m pytest -q -s -p no:cacheprovider test_in_pytest.py"),
    Case("`python -m pack.train`", "torch", "-m pack.train", file="pack/model.py"),
    Case("Hydra", "hydra-core", "hydra_app.py"),
    Case("click", "click", "click_app.py"),
    Case("typer, exit code 5", "typer", "typer_app.py"),
    Case("Ray Train", "ray", "ray_train.py"),
    Case("JAX", "jax", "jax_loop.py", 0),
    Case("scikit-learn", "scikit-learn", "sklearn_fit.py", 0),
)  # fmt: skip


@dataclass
class Outcome:
    """What a command has left."""

    folder: Path
    exit_code: int
    stdout: str
    stderr: str

    @property
    def printed(self) -> list[str]:
        return VARYING.sub("T", OUR_LINES.sub("", self.stdout)).splitlines()

    @property
    def files(self) -> set[str]:
        found = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        return {re.sub(r"\d{2,}", "N", name) for name in found if not OURS.search(name)}

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("mem/*/report.json"))]


def run(case: Case, folder: Path, *, watched: bool, leaks: bool = True) -> Outcome:
    """Run it in this new folder."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__main__.py", "__pycache__"))
    planted = folder / _file(case)
    if not leaks:
        planted.write_text(LEAK.sub("pass", planted.read_text()))
    first, *rest = case.words.split()
    beside = Path(sys.executable).parent / first
    command = [str(beside), *rest] if beside.exists() else [sys.executable, first, *rest]
    if watched:
        command = [sys.executable, "-m", "forgather_mem", "run", *(command if beside.exists() else command[1:])]
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "FORGATHER_MEM_DIR": str(folder / "mem"), "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    with open(folder / "stdout", "w+b") as out, open(folder / "stderr", "w+b") as err:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=err, start_new_session=True)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    words = [(folder / name).read_text(errors="replace") for name in ("stdout", "stderr")]
    return Outcome(folder, process.returncode, *words)


def _file(case: Case) -> str:
    return case.file or case.words.split()[-1]


def judge(case: Case, folder: Path, *, clean: bool) -> list[str]:
    """The cells of a row."""
    try:
        found = version(case.package)
    except PackageNotFoundError:
        return [case.name, "not to be had here"]
    with ThreadPoolExecutor() as pool:  # at the same time: on the same machine, and in half the time
        both = [
            pool.submit(run, case, folder / ("watched" if watched else "alone"), watched=watched)
            for watched in (False, True)
        ]
        alone, watched = (one.result() for one in both)
    if "loss" not in alone.stdout:
        return [case.name, found, f"does not run here: {([*alone.stderr.split(chr(10)), ''])[-2][:80]}"]
    holder = LEAK.search((HERE / _file(case)).read_text())
    assert holder is not None, case
    line = case.line or f"{_file(case)}:{(HERE / _file(case)).read_text()[: holder.start()].count(chr(10)) + 1}"
    shown = " ".join(watched.stderr.partition("== forgather-mem ==")[2].split())
    reports = watched.reports()
    phases = {peak["phase"] for report in reports for peak in report["peaks"]} - {"startup", "other"}
    same = {
        "exit code": alone.exit_code == watched.exit_code,
        "output": alone.printed == watched.printed,
        "files": alone.files == watched.files,
    }
    costs = [report["overhead"]["share_of_step"] for report in reports if report["steps"]]
    named = "LEAK" in shown, holder[1] in shown, line in shown
    told = "yes" if all(named) else "leak, holder" if all(named[:2]) else "leak" if named[0] else "no"
    if clean:
        told += " / false alarm" * ("LEAK " in run(case, folder / "clean", watched=True, leaks=False).stderr)
    return [
        case.name, found, f"{sum(one['steps'] for one in reports)} of {case.steps}" if case.steps else "by time", ", ".join(sorted(phases)), told,
        "equal" if all(same.values()) else "not equal: " + ", ".join(name for name, is_so in same.items() if not is_so),
        f"{max(costs):.1%}" if costs else "-", case.takes,
    ]  # fmt: skip


HEADINGS = ("framework", "version", "steps", "phases", "leak", "exit code, output, files", "own cost", "takes from you")


def write(rows: dict[str, list[str]]) -> None:
    """Put the table into the page, after the line that says who makes it."""
    before = PAGE.read_text().partition("\n| framework")[0]
    table = [HEADINGS, ["---"] * len(HEADINGS), *(rows[case.name] for case in CASES if case.name in rows)]
    lines = ["| " + " | ".join([*row, *[""] * (len(HEADINGS) - len(row))]) + " |" for row in table]
    PAGE.write_text("\n".join([before, *lines, ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", type=Path, help="leave what the runs wrote in this new folder")
    parser.add_argument("--clean", action="store_true")
    arguments = parser.parse_args()
    rows = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = [cell for cell in cells if cell]
    with tempfile.TemporaryDirectory() as name:
        place = (arguments.keep or Path(name)).resolve()
        for number, case in enumerate(CASES):
            if arguments.only and not any(part in case.name + case.words for part in arguments.only):
                continue
            began_s = time.monotonic()
            row = rows[case.name] = judge(case, place / f"{number}", clean=arguments.clean)
            print(f"{time.monotonic() - began_s:.0f} s", *row, sep=" | ", flush=True)
            write(rows)


if __name__ == "__main__":
    main()
