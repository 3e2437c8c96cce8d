"""What does watching take of a training when memory runs out, and does the training die where it dies alone?

    python benchmarks/own_memory_at_failure.py [--runs 3] [--only plain trainer lightning] [--tree FOLDER]

Each training's batches grow by the same number of rows in each step, below RLIMIT_DATA, until one does not fit. It is
run alone and by `forgather-mem run`, taking turns. Told is what the watched process has more than the other at the
beginning of the same step, the median of all steps to the failure (the C library keeps now more, now less): private
memory (`Private_Dirty`) and the data segment (what the limit counts); and at which step and in which pass each died.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.own_memory import BYTECODE, memory_of  # noqa: E402

WIDTH, LAYERS, ROWS = 256, 4, 256  # so each step keeps 2.25 MiB more than the one before
STEPS = 20
WARM_UP = 2
DIES_AT = 14  # the limit is what this step of the training alone takes at the end of its forward pass, and half a step
STEP_MIB = (2 * LAYERS + 1) * ROWS * WIDTH * 4 / 2**20
LIMIT, TOLD = "AT_FAILURE_LIMIT_BYTES", "AT_FAILURE_TOLD"
KINDS = ("plain", "trainer", "lightning")


def trained(kind: str) -> None:
    """In the child: train, and write down what the process has in each step."""
    import torch

    told = open(os.environ[TOLD], "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    limit = int(os.environ[LIMIT])

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
            self.inner = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.Tanh())])
            self.steps = 0

        def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
            self.steps += 1
            told.write(json.dumps({"step": self.steps, "at": "begin", **memory_of()}) + "\n")
            x = x.new_zeros(ROWS * self.steps, WIDTH)
            out = self.inner(x)
            told.write(json.dumps({"step": self.steps, "at": "forward", **memory_of()}) + "\n")
            return {"loss": out.square().mean()}

    torch.manual_seed(0)
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    globals()[f"_{kind}"](Net())


def _plain(model: Any) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.zeros(1, 1))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def _trainer(model: Any) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", max_steps=STEPS, per_device_train_batch_size=1, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=[{"x": torch.zeros(1)}] * STEPS).train()


def _lightning(model: Any) -> None:
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader([torch.zeros(1)] * STEPS))


def one(kind: str, watched: bool, limit: int, tree: Path) -> tuple[list[dict[str, Any]], str, str]:
    """One training: what it has told, the pass in which it died, and the report's sentences."""
    words = [
        sys.executable,
        *(["-m", "forgather_mem", "run", "--advice-s", "0", "--report", "r.json"] if watched else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            LIMIT: str(limit),
            TOLD: str(told),
        }
        environment |= {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONPATH": str(tree)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [*words, __file__, "--child", kind], cwd=folder, env=environment, capture_output=True, text=True
        )
        if not told.exists():
            raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
        report = Path(folder, "r.json")
        oom = (json.loads(report.read_text()).get("oom") or {}) if report.exists() else {}
        said = f"step {oom['step']}, {oom['phase']}" if oom else ""
        return [json.loads(line) for line in told.read_text().splitlines()], _pass(done.stderr), said


def _pass(traceback: str) -> str:
    last = traceback.rpartition("Traceback (most recent call last)")[2]
    found = [name for name in ("backward", "forward") if f"in {name}\n" in last]
    return found[0] if found else "optimizer" if "optim" in last else "none"


def compare(kind: str, runs: int, tree: Path) -> None:
    calm = [one(kind, False, 0, tree)[0] for _ in range(2)]
    at_step = [row["data"] for rows in calm for row in rows if (row["step"], row["at"]) == (DIES_AT, "forward")]
    limit = int((statistics.median(at_step) + STEP_MIB / 2) * 2**20)
    one(kind, True, limit, tree)  # writes the bytecode
    sizes: dict[tuple[str, int, str], list[float]] = {}
    ends: dict[str, list[str]] = {"alone": [], "run": []}
    for _ in range(runs):
        for way in ("alone", "run"):
            rows, where, said = one(kind, way == "run", limit, tree)
            ends[way].append(f"step {rows[-1]['step']}, {where}" + (f" (told: {said})" if said else ""))
            for row in rows:
                if row["at"] == "begin":
                    for name in ("private", "data"):
                        sizes.setdefault((way, row["step"], name), []).append(row[name])
    steps = {step for way, step, _ in sizes if way == "run"} & {step for way, step, _ in sizes if way == "alone"}
    more = {
        name: statistics.median(
            statistics.median(sizes["run", step, name]) - statistics.median(sizes["alone", step, name])
            for step in steps
            if step > WARM_UP
        )
        for name in ("private", "data")
    }
    print(f"{kind}: {more['private']:+.1f} MiB private, {more['data']:+.1f} MiB of the data segment")
    for way, found in ends.items():
        print(f"  {way}: {'; '.join(found)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of the library to compare with")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        trained(arguments.child)
    else:
        for kind in arguments.only:
            compare(kind, arguments.runs, arguments.tree.resolve())
