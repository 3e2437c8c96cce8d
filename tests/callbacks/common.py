"""What tests of callbacks share: all of ours, a work that notes its steps, and what was written."""

from typing import Any

from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import (
    ClearCacheCallback,
    CudaGarbageCollector,
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    SimpleGarbageCollector,
    TBMemoryLogger,
)
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule


def all_callbacks() -> list[TrainerCallback]:
    return [
        SimpleGarbageCollector(verbose=True),
        CudaGarbageCollector(collect_freq_step=2, verbose=True),
        ClearCacheCallback("step", 2, garbage_collection=True),
        TBMemoryLogger(metrics=["host", "device", "phases", "gc", "workers", "tensors"]),
        JsonMemoryLogger(),
        PeakMemory(),
        MemoryCallback(),
    ]


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
