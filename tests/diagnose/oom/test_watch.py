"""A failure is told when no memory is left, though what explains it is loaded only then."""

import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback, TrainingArguments

from forgather_mem.callbacks import LeakDetector, OOMReporter
from forgather_mem.page.report_dict import Report
from forgather_mem.system.procfs import KernelFile, kib_fields
from forgather_mem.units import MIB
from tests.training import Bigrams, Tokens

EXPLAINS = {f"forgather_mem.{name}" for name in ("diagnose.oom.explanation", "diagnose.oom.place", "heap.failed_call")}
LOOKS = {f"forgather_mem.{name}" for name in ("diagnose.leaks.heap_diff", "heap.reachable")}


class KeepsAll(TrainerCallback):
    """At its third step it keeps small things until nothing is left of 30 MiB."""

    def __init__(self) -> None:
        self.kept: list[bytearray] = []
        self.loaded: set[str] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step < 3:
            return
        self.loaded = set(sys.modules)
        status = KernelFile("/proc/self/status")
        limit = kib_fields(status.read())[b"VmData"] + 30 * MIB
        status.close()
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        while True:
            self.kept.append(bytearray(10_000))


@pytest.mark.fresh
def test_what_explains_a_failure_is_loaded_when_small_things_have_left_no_memory(tmp_path: Path) -> None:
    keeps, reporter = KeepsAll(), OOMReporter(strict=True)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=5, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True
    )
    callbacks = [reporter, LeakDetector(strict=True), keeps]
    trainer = Trainer(Bigrams(), arguments, train_dataset=Tokens(), callbacks=callbacks)
    with pytest.raises(MemoryError):
        trainer.train()
    assert sorted((EXPLAINS | LOOKS) & keeps.loaded) == []  # else this shows nothing
    assert set(sys.modules) >= EXPLAINS
    oom = Report.of(reporter.summary)["oom"]
    assert (oom["where"], oom["kind"], oom["callback"]) == ("host", "MemoryError", "KeepsAll.on_step_end")
