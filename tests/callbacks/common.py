"""What tests of callbacks share: all of ours, a work that notes its steps, and what was written."""

from collections.abc import Callable
from typing import Any

from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import (
    ClearCacheCallback,
    CudaGarbageCollector,
    GradLogger,
    InfoCallback,
    JsonLogger,
    JsonMemoryLogger,
    LeakDetector,
    MemoryAlert,
    MemoryCallback,
    OOMReporter,
    PeakMemory,
    ProfileMemory,
    ProgressCallback,
    ScheduledGarbageCollector,
    SimpleGarbageCollector,
    TBLogger,
    TBMemoryLogger,
    TextgenCallback,
)
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule

SAMPLED = {"do_sample": True, "max_new_tokens": 3}
METRICS = ["host", "device", "phases", "gc", "workers", "tensors"]
Make = Callable[..., TrainerCallback]
# All that are exported, each with settings by which much of it is done: what holds for all is tried with each
OF_MEMORY: dict[str, Make] = {
    "SimpleGarbageCollector": lambda **options: SimpleGarbageCollector(verbose=True, **options),
    "CudaGarbageCollector": lambda **options: CudaGarbageCollector(collect_freq_step=2, verbose=True, **options),
    "ClearCacheCallback": lambda **options: ClearCacheCallback("step", 2, garbage_collection=True, **options),
    "TBMemoryLogger": lambda **options: TBMemoryLogger(metrics=METRICS, **options),
    "JsonMemoryLogger": JsonMemoryLogger,
    "PeakMemory": PeakMemory,
    "LeakDetector": lambda **options: LeakDetector(every_steps=1, **options),
    "OOMReporter": OOMReporter,
    "ScheduledGarbageCollector": lambda **options: ScheduledGarbageCollector(every_steps=2, **options),
    "MemoryAlert": MemoryAlert,
    "ProfileMemory": ProfileMemory,
    "MemoryCallback": MemoryCallback,
}
OF_TRAINING: dict[str, Make] = {
    "ProgressCallback": ProgressCallback,
    "InfoCallback": lambda **options: InfoCallback(True, **options),
    "TBLogger": lambda **options: TBLogger(name="x", **options),
    "JsonLogger": lambda **options: JsonLogger(name="x", **options),
    "TextgenCallback": lambda **options: TextgenCallback(None, ["w3 w4"], SAMPLED, 1, **options),
    "GradLogger": lambda **options: GradLogger(log_frequency=1, **options),
}


def all_callbacks(**options: Any) -> list[TrainerCallback]:
    """Those about memory."""
    return [make(**options) for make in OF_MEMORY.values()]


def of_training(**options: Any) -> list[TrainerCallback]:
    """Those about the training; they want a tokenizer."""
    return [make(**options) for make in OF_TRAINING.values()]


class RunsOutOfMemoryOnce(Trainer):
    """In its third step, so that it begins anew where `auto_find_batch_size` is on."""

    failed = False

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failed and self.state.global_step == 2:
            self.failed = True
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().training_step(*args, **kwargs)


def captured(rules: list[Rule], **options: Any) -> tuple[MemoryCallback, Capture]:
    capture = Capture()
    return MemoryCallback(rules, [capture], **options), capture


class Steps:
    """A work that notes when it was called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        self.steps.append(moment.step)
        return {}
