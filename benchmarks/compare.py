"""Twelve changes of one training, each of which `forgather-mem compare` must name, and pairs of equal runs.

    python benchmarks/compare.py [--pairs 20] [--only attention leak]

Each change is one that has made a training of somebody grow. Both runs are planned: the right part, and where there is
one the right setting, must stand first. Where no plan and no count can tell, nothing may be named; of equal runs
nothing may be said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

BASE = {
    "attention": "sdpa", "dtype": "float32", "optim": "adamw_torch", "rows": 8, "length": 128, "checkpointing": False,
    "leak": False, "teacher": False, "workers": 0, "logits": False, "copies": False, "cleans": False, "garbage": False,
    "eval_rows": 16, "steps": 30,
}  # fmt: skip
SCRIPT = """
    import gc, json, os, sys
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    with_ = json.loads(os.environ["CHANGED"])
    torch.manual_seed(0)


    class Rows(torch.utils.data.Dataset):
        def __init__(self, number):
            self.number = number

        def __len__(self):
            return self.number

        def __getitem__(self, index):
            row = torch.arange(index, index + with_["length"]) % 2000
            return {"input_ids": row, "labels": row}


    class Keeps(TrainerCallback):
        kept = []

        def on_step_end(self, args, state, control, **objects):
            if with_["leak"]:
                self.kept.append(torch.ones(500_000))
            if with_["garbage"]:
                cycle = [torch.ones(500_000)]
                cycle.append(cycle)
            if with_["copies"]:  # of the weights, for an average that nobody has asked for
                self.copy = {name: one.clone() for name, one in objects["model"].state_dict().items()}


    def model():
        config = LlamaConfig(
            vocab_size=2000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
            attn_implementation=with_["attention"],
        )
        return LlamaForCausalLM(config).to(getattr(torch, with_["dtype"]))


    if __name__ == "__main__":
        if with_["garbage"]:
            gc.disable()
        teachers = [model() for _ in range(3)] if with_["teacher"] else []
        arguments = TrainingArguments(
            "out", per_device_train_batch_size=with_["rows"], optim=with_["optim"], report_to=[], disable_tqdm=True,
            max_steps=with_["steps"], gradient_checkpointing=with_["checkpointing"], save_strategy="no",
            dataloader_num_workers=with_["workers"], eval_strategy="steps", eval_steps=20,
            prediction_loss_only=not with_["logits"], use_cpu=True,
        )
        from forgather_mem.actions import Collect
        from forgather_mem.callbacks.memory_callback import MemoryCallback, watch_rules
        from forgather_mem.telemetry.rule import Rule
        from forgather_mem.triggers import Every

        cleans = MemoryCallback(rules=[*watch_rules(), Rule(when=Every(steps=1), do=[Collect()])])
        Trainer(
            model=model(), args=arguments, train_dataset=Rows(4000), eval_dataset=Rows(with_["eval_rows"]),
            callbacks=[Keeps(), *[cleans] * with_["cleans"]],
            compute_metrics=(lambda predictions: {}) if with_["logits"] else None,
        ).train()
"""


class Case(NamedTuple):
    """A change, and what must stand first: a part, and a setting that is among its causes."""

    name: str
    changes: dict[str, object]
    part: str
    setting: str = ""
    before: tuple[tuple[str, object], ...] = ()  # what the first run already has


CASES = (
    Case("attention", {"attention": "eager"}, "activations", "model.attn_implementation"),
    Case("dtype", {"dtype": "bfloat16"}, "activations", "model.dtype"),
    Case("optimizer", {"optim": "sgd"}, "optimizer", "optimizer"),
    Case("batch", {"rows": 16}, "activations", "arguments.per_device_train_batch_size"),
    Case("length", {"length": 256}, "activations", "batch.length"),
    Case(
        "checkpointing off",
        {"checkpointing": False},
        "activations",
        "arguments.gradient_checkpointing",
        before=(("checkpointing", True),),
    ),
    Case("leak", {"leak": True}, "leak", before=(("steps", 120),)),
    Case("second model", {"teacher": True}, "other models", "other_models"),
    Case("workers", {"workers": 2}, "data workers", "arguments.dataloader_num_workers"),
    Case(
        "evaluation gathers",
        {"logits": True},
        "results",
        "arguments.prediction_loss_only",
        before=(("eval_rows", 400),),
    ),
    Case("a copy of the weights", {"copies": True}, "held"),
    Case("a clean-up removed", {"cleans": False}, "nothing", before=(("garbage", True), ("cleans", True))),
)


def main() -> int:
    """The number of misses."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--pairs", type=int, default=20)
    asked.add_argument("--only", nargs="*", default=None)
    asked.add_argument("--folder", default=None, help="where the runs are kept; default: nowhere")
    wanted = asked.parse_args()
    cases = [case for case in CASES if wanted.only is None or case.name in wanted.only]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(wanted.folder or folder)
        (place / "train.py").write_text(textwrap.dedent(SCRIPT))
        base = _run(place, "base", {})
        misses = sum(not _named(place, base, case) for case in cases)
        claims = 0
        for number in range(wanted.pairs):
            found = _compared(base, _run(place, f"equal{number}", {}))
            claims += bool(found["explained_by"] or found["growth"])
            print(f"equal {number}: {found['explained_by'] or 'nothing'}", flush=True)
    print(f"{len(cases) - misses} of {len(cases)} named first; {claims} claims in {wanted.pairs} equal pairs")
    return misses + claims


def _named(place: Path, base: Path, case: Case) -> bool:
    before = dict(case.before)
    old = _run(place, f"before {case.name}", before) if before else base
    new = _run(place, case.name, {**before, **case.changes})
    found = _compared(old, new)
    first = (found["explained_by"] or [{"part": "nothing", "phase": "", "bytes": 0.0, "causes": []}])[0]
    causes = [cause["name"] for cause in first["causes"]]
    right = first["part"] == case.part and (not case.setting or case.setting in causes[:3])
    told = f"{first['part']} {first['phase']} {first['bytes'] / 2**20:+.1f} MiB {causes[:3]}"
    print(f"{'right' if right else 'WRONG'}  {case.name}: {told}", flush=True)
    return bool(right)


def _run(place: Path, name: str, changes: dict[str, object]) -> Path:
    folder = place / name.replace(" ", "_")
    told = {"CHANGED": json.dumps({**BASE, **changes}), "FORGATHER_MEM_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "forgather_mem", "run", "--plan", "train.py"]
    done = subprocess.run(words, cwd=place, env={**os.environ, **told}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return folder


def _compared(before: Path, after: Path) -> dict[str, list[dict[str, object]]]:
    words = [sys.executable, "-m", "forgather_mem", "compare", str(before), str(after), "--json"]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)[0]  # type: ignore


if __name__ == "__main__":
    sys.exit(main())
