"""Small trainings with all our callbacks, in which something of ours fails, and what they must come to all the same."""

import gc
import io
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import TrainerCallback

from forgather_mem import Above, AtEvent, EpochMemoryMonitor, Every, Rule, TrainingLoop
from forgather_mem import callbacks as our
from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.sinks import ConsoleSink
from forgather_mem.telemetry.records import Moment, Sample
from tests.training import fingerprint, make_trainer, patches_in

STEPS = 6
ALL_METRICS = ["host", "device", "phases", "gc", "workers", "tensors"]


def level(moment: Moment, sample: Sample) -> Mapping[str, float]:
    """A reading that crosses an alert's limit."""
    return {"mine/level_frac": 0.95 if moment.step >= 3 else 0.2}


def all_callbacks(stream: io.StringIO) -> list[TrainerCallback]:
    """Everything that takes part in a training, set so that as much as possible of it is done."""
    acts = [Collect(), Adaptive(ClearCache()), TrimHost()]
    own = [
        Rule(Every(steps=1), [level]),
        Rule(Above("host/limit_used_frac", 1e-9), acts),
        Rule(AtEvent("evaluate", "save"), acts),
    ]
    return [
        our.MemoryCallback(),
        our.MemoryCallback(own, [ConsoleSink()], monitor=EpochMemoryMonitor(verbose_batches=1)),
        our.LeakDetector(every_steps=1),
        our.OOMReporter(),
        our.TBMemoryLogger(metrics=ALL_METRICS, hparams={"lr": 0.1}, rank_steps=1),
        our.JsonMemoryLogger(),
        our.PeakMemory(),
        our.ScheduledGarbageCollector(every_steps=2, boundary_steps=4, verbose=True),
        our.SimpleGarbageCollector(verbose=True),
        our.CudaGarbageCollector(collect_freq_step=2, verbose=True),
        our.ClearCacheCallback("step", 2, garbage_collection=True, trim_host=True, adaptive=True),
        our.MemoryAlert({"mine/level_frac": "90%"}, every_steps=1),
        our.ProgressCallback(use_tqdm=True, output_stream=stream),
        our.InfoCallback(),
        our.TBLogger(),
        our.JsonLogger(),
        our.GradLogger(log_frequency=2),
    ]


def loop_training(callbacks: list[TrainerCallback], folder: Path) -> Any:
    """A loop of one's own: two epochs of three steps, each with two micro-batches, an evaluation, a checkpoint."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    loop = TrainingLoop(model, optimizer, args=SimpleNamespace(output_dir=str(folder)), callbacks=callbacks)
    with loop.train():
        for _ in range(2):
            with loop.epoch(STEPS // 2):
                for _ in range(STEPS // 2):
                    with loop.step():
                        for _ in range(2):
                            with loop.substep():
                                loss = model(torch.randn(2, 4)).square().mean()
                                loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    losses.append(loss.item())
                    loop.log({"loss": losses[-1]})
            with loop.evaluation() as metrics:
                metrics["eval_loss"] = losses[-1]
            with loop.saving():
                pass
    logged = [{name: entry[name] for name in entry if "loss" in name} for entry in loop.state.log_history]
    hooks = [model._forward_hooks, model._forward_pre_hooks, *_hooks_of(optimizer)]
    return (
        loop.state.global_step, losses, logged, loop.control, sum(map(len, hooks)), torch.random.get_rng_state().sum(),
    )  # fmt: skip


def trainer_training(callbacks: list[TrainerCallback], folder: Path) -> Any:
    """A `transformers.Trainer` with evaluations and checkpoints; the same of it as of the loop."""
    trainer = make_trainer(
        folder, callbacks, max_steps=STEPS, gradient_accumulation_steps=2, rows=64, logging_steps=1,
        eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3, save_only_model=True,
        save_total_limit=1,
    )  # fmt: skip
    trainer.train()
    logged = [{name: entry[name] for name in entry if "loss" in name} for entry in trainer.state.log_history]
    hooks = sum(map(len, _hooks_of(trainer.optimizer.optimizer)))
    return trainer.state.global_step, fingerprint(trainer), logged, repr(trainer.control), patches_in(trainer), hooks


def _hooks_of(optimizer: Any) -> list[Any]:
    return [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks]


def of_the_process() -> dict[str, Any]:
    """What is the whole process's, and must be afterwards as it was."""
    return {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0),
        "gc.callbacks": [type(it).__name__ for it in gc.callbacks if type(it).__module__.startswith("forgather_mem")],
        "tracing": (sys.gettrace(), tracemalloc.is_tracing()),
        "empty_cache": torch.cuda.empty_cache,
    }
