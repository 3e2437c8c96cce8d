"""A real Trainer on a tiny model, as the scripts of the zoo use it; the runner asks for more by the environment.

ZOO_OUT: where to write what was found and what was measured. ZOO_GOVERNOR=1: with the collector's governor.
ZOO_PLAIN=1: without any callback of ours.
"""

import json
import os
import tempfile
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

STEPS = 240


class Net(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inner = torch.nn.Linear(32, width)
        self.outer = torch.nn.Linear(width, 8)

    def forward(self, x, labels=None):
        logits = self.outer(torch.relu(self.inner(x)))
        return {"loss": torch.nn.functional.mse_loss(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __init__(self, count=64):
        chance = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 32, generator=chance)
        self.y = torch.randn(count, 8, generator=chance)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Meter(TrainerCallback):
    """What the kernel says of this process, twice: the truth that does not depend on what is tested."""

    def __init__(self):
        self.at = {}
        self.began_s = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (state.max_steps // 2, state.max_steps - 2):
            resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
            self.at[state.global_step] = (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def per_step(self):
        (first, low), (last, high) = sorted(self.at.items())
        return (high - low) / (last - first)


def make(callbacks=(), cls=Trainer, model=None, data=None, steps=STEPS, **settings):
    """A trainer that is ready."""
    arguments = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": 4,
        "max_steps": steps,
        "logging_steps": 50,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "seed": 7,
    }
    arguments.update(settings)
    trainer = cls(
        model=model or Net(),
        args=TrainingArguments(**arguments),
        train_dataset=data if data is not None else Rows(),
        eval_dataset=Rows(16),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(trainer):
    """Train, watched, and write down what came of it."""
    meter = Meter()
    trainer.add_callback(meter)
    detector = None
    if not os.environ.get("ZOO_PLAIN"):
        from forgather_mem.callbacks import LeakDetector, ScheduledGarbageCollector

        detector = LeakDetector(strict=True)
        trainer.add_callback(detector)
        if os.environ.get("ZOO_GOVERNOR"):
            trainer.add_callback(ScheduledGarbageCollector())
    began_s = time.perf_counter()
    trainer.train()
    took_s = time.perf_counter() - began_s
    found = {
        "measured": meter.per_step(),
        "took_s": took_s,
        "weights": float(sum(p.sum() for p in trainer.model.parameters())),
    }
    if detector is not None:
        from forgather_mem.reporting.build import build_report
        from forgather_mem.telemetry.report_schema import to_dict

        report = to_dict(build_report(detector.summary))
        found |= {"leak": report["leak"], "own_s": report["overhead"]["seconds"]}
    if os.environ.get("ZOO_OUT"):
        Path(os.environ["ZOO_OUT"]).write_text(json.dumps(found))
    else:
        print(json.dumps(found, indent=1))
