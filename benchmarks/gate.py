"""Does `run --baseline` find 5 % more live tensor bytes, wherever they are, and stay silent where nothing has changed?

    python benchmarks/gate.py [--unchanged 100] [--at-once 2] [--busy 2] [--only NAME ...]

Each run is a training of a few steps, a Trainer's or a plain loop's, watched and planned as by `forgather-mem run
--baseline`, as a fork of one process that has imported everything. Unchanged runs go beside processes that never rest.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from _watched_forks import Fork, Ran, in_turn, prepare  # noqa: E402

from forgather_mem.comparing.baseline import Baseline  # noqa: E402
from forgather_mem.telemetry.run_session import PLAN_FIRST  # noqa: E402

TRAINER = """
    import json, sys
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    told = {"rows": 16, "length": 128, "hidden": 128, "middle": 256, "layers": 2, "vocab": 1000, "attention": "sdpa",
            "tied": True, "keep": 0, "optim": "adamw_torch", "dropout": 0.0, **json.loads(sys.argv[1])}
    torch.manual_seed(0)
    MIB = 2**20

    class Rows(torch.utils.data.Dataset):
        kept = torch.ones(told["keep"] * MIB // 4) if told.get("where") == "data set" else None
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            row = torch.arange(index, index + told["length"]) % told["vocab"]
            return {"input_ids": row, "labels": row}

    def model(layers=told["layers"]):
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=told["vocab"], hidden_size=told["hidden"], intermediate_size=told["middle"],
            num_hidden_layers=layers, num_attention_heads=4, attn_implementation=told["attention"],
            tie_word_embeddings=told["tied"], attention_dropout=told["dropout"],
        ))

    class Keeps(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **objects):
            if told.get("where") == "callback":
                self.copies = {name: one.clone() for name, one in model.state_dict().items()}
            if told.get("where") == "first step" and state.global_step == 1:
                self.cache = torch.ones(told["keep"] * MIB // 4)

    class Losses(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **others):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
            if told.get("where") == "loss":
                loss = loss + outputs.logits.exp().mean() * 0.001
            return (loss, outputs) if return_outputs else loss

    trained = model()
    if told.get("where") == "buffer":
        trained.register_buffer("mask", torch.ones(told["keep"] * MIB // 4))
    teacher = model(told["keep"]) if told.get("where") == "teacher" else None
    Losses(trained, TrainingArguments(
        "out", per_device_train_batch_size=told["rows"], max_steps=4, report_to=[], disable_tqdm=True, use_cpu=True,
        save_strategy="no", optim=told["optim"], optim_args=told.get("optim_args"),
        gradient_accumulation_steps=told.get("accumulation", 1),
    ), train_dataset=Rows(), callbacks=[Keeps()]).train()
"""
LOOP = """
    import json, sys
    import torch
    from torch.utils.checkpoint import checkpoint

    told = {"rows": 1024, "width": 512, "layers": 6, "keep": 0, "optimizer": "AdamW", **json.loads(sys.argv[1])}
    torch.manual_seed(0)
    MIB = 2**20
    layers = [torch.nn.Sequential(torch.nn.Linear(told["width"], told["width"]), torch.nn.Tanh(),
              *([torch.nn.Dropout(0.1)] if told.get("where") == "dropout" and not number else []))
              for number in range(told["layers"])]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(told["width"], 10))
    if told.get("where") == "buffer":
        model.register_buffer("mask", torch.ones(told["keep"] * MIB // 4))
    optimizer = getattr(torch.optim, told["optimizer"])(model.parameters(), lr=1e-4, **told.get("options", {}))
    kept, history = [], []
    if told.get("where") == "before":
        kept.append(torch.ones(told["keep"] * MIB // 4))
    for step in range(6):
        rows = torch.randn(told["rows"], told["width"])
        targets = torch.randint(10, (told["rows"],))
        outputs = checkpoint(model, rows, use_reentrant=False) if told.get("where") == "checkpoint" else model(rows)
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        if told.get("where") == "averages":
            kept[:] = [one.grad.clone() for one in model.parameters()]
        if told.get("where") == "outputs" and step < told["keep"]:
            history.append(outputs)
        optimizer.step()
        optimizer.zero_grad()
"""
SCRIPTS = {"Trainer": TRAINER, "loop": LOOP}


class Way(NamedTuple):
    """One way to take more: the script, its name, and what it is told."""

    script: str
    name: str
    told: dict[str, object]


WAYS = (
    Way("Trainer", "a batch of 17 rows instead of 16", {"rows": 17}),
    Way("Trainer", "rows of 136 tokens instead of 128", {"length": 136}),
    Way("Trainer", "a hidden size of 144 instead of 128", {"hidden": 144}),
    Way("Trainer", "a wider MLP, 320 instead of 256", {"middle": 320}),
    Way("Trainer", "a vocabulary of 1,160 instead of 1,000", {"vocab": 1160}),
    Way("Trainer", "eager attention", {"attention": "eager"}),
    Way("Trainer", "one more layer", {"layers": 3}),
    Way("Trainer", "a copy of the weights, kept by a callback", {"where": "callback"}),
    Way("Trainer", "4 MiB kept since the first step", {"where": "first step", "keep": 4}),
    Way("Trainer", "4 MiB in the data set", {"where": "data set", "keep": 4}),
    Way("Trainer", "a buffer of 4 MiB", {"where": "buffer", "keep": 4}),
    Way("Trainer", "a second model of 4 layers", {"where": "teacher", "keep": 4}),
    Way("Trainer", "a term of the loss that keeps the logits", {"where": "loss"}),
    Way("loop", "a batch of 1,200 rows instead of 1,024", {"rows": 1200}),
    Way("loop", "a width of 544 instead of 512", {"width": 544}),
    Way("loop", "one more layer", {"layers": 7}),
    Way("loop", "AdamW with amsgrad", {"options": {"amsgrad": True}}),
    Way("loop", "dropout after one layer", {"where": "dropout"}),
    Way("loop", "4 MiB kept since before the loop", {"where": "before", "keep": 4}),
    Way("loop", "averages of the gradients", {"where": "averages"}),
)


def main() -> int:
    """The number of misses and false alarms."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--unchanged", type=int, default=100)
    asked.add_argument("--at-once", type=int, default=2)
    asked.add_argument("--busy", type=int, default=2)
    asked.add_argument("--only", nargs="*", default=None)
    wanted = asked.parse_args()
    os.environ |= {PLAN_FIRST: "1", "OMP_NUM_THREADS": "1"}
    prepare(["torch", "transformers", "transformers.trainer", "transformers.models.llama.modeling_llama"])
    ways = [way for way in WAYS if wanted.only is None or way.name in wanted.only]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, script in SCRIPTS.items():
            (place / f"{name}.py").write_text(textwrap.dedent(script))
        before = dict(zip(SCRIPTS, _ran(place, [Way(name, "", {}) for name in SCRIPTS], 1), strict=True))
        misses = 0
        for way, ran in zip(ways, _ran(place, ways, wanted.at_once), strict=True):
            grown, missing = _told(before[way.script], ran)
            misses += not grown or bool(missing)
            said = "; ".join(grown or missing or ["nothing"])
            print(f"{'found' if grown else 'MISSED'}  {way.script}: {way.name}: {said}", flush=True)
        alarms, began_s = 0, time.monotonic()
        same = [Way(("Trainer", "loop")[number % 2], "unchanged", {}) for number in range(wanted.unchanged)]
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(wanted.busy)]
        try:
            for way, ran in zip(same, _ran(place, same, wanted.at_once), strict=True):
                said = [*_told(before[way.script], ran)[0], *_told(before[way.script], ran)[1]]
                alarms += bool(said)
                if said:
                    print(f"ALARM  {way.script}: {'; '.join(said)}", flush=True)
        finally:
            for one in busy:
                one.kill()
    took_s = time.monotonic() - began_s
    print(f"{len(ways) - misses} of {len(ways)} found; {alarms} alarms in {len(same)} unchanged runs, {took_s:.0f} s")
    return misses + alarms


def _ran(place: Path, ways: Sequence[Way], at_once: int) -> Iterator[Ran]:
    for way, ran in zip(
        ways,
        in_turn((functools.partial(Fork, place / f"{way.script}.py", [json.dumps(way.told)]) for way in ways), at_once),
        strict=True,
    ):
        if ran.code or len(ran.reports) != 1:
            sys.exit(f"{way}: ended with {ran.code}, {len(ran.reports)} reports\n{ran.output}")
        yield ran


def _told(before: Ran, ran: Ran) -> tuple[list[str], list[str]]:
    """What has grown, and what could not be compared."""
    first, now = Baseline.of(before.reports), Baseline.of(ran.reports)
    return [sentence for sentence in first.grown(now) if "since then" not in sentence], list(first.missing(now))


if __name__ == "__main__":
    sys.exit(main())
