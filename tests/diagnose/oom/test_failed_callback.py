"""A failure inside a callback's own event, in real trainings: whose it is, which line, a copy of what."""

import copy
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from forgather_mem.callbacks import OOMReporter
from forgather_mem.diagnose.oom.explanation import explained
from forgather_mem.heap.failed_call import CallbackFailure
from forgather_mem.page.report_dict import Report
from forgather_mem.system.procfs import KernelFile, kib_fields
from forgather_mem.units import MIB
from tests.diagnose.oom.failures import failure_of

NUMBERS = 16 * MIB
FLOAT = 4
ROWS = [{"x": torch.tensor([index])} for index in range(64)]


class Model(torch.nn.Module):
    """Its parameters take 64 MiB, AdamW's state twice that."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(NUMBERS // 1024, 1024))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.table[x].pow(2).mean()}


def with_room_of(size: int) -> None:
    """From now on this process may take so many bytes more."""
    status = KernelFile("/proc/self/status")
    used = kib_fields(status.read())[b"VmData"]
    status.close()
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class KeepsCopies(TrainerCallback):
    """Copies the state at each checkpoint, or does something else that does not fit."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        with_room_of(100 * MIB)
        self.keep(objects["model"], objects["optimizer"])

    def keep(self, model: Any, optimizer: Any) -> None:
        if self.what == "both":
            self.kept: Any = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        elif self.what == "model":
            self.kept = [copy.deepcopy(model) for _ in range(4)]
        elif self.what == "clones":
            self.kept = [torch.full((NUMBERS,), 1.0) for _ in range(4)]


class Compares(TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        with_room_of(100 * MIB)
        self.pairs = torch.zeros(NUMBERS, 4)


def failed(folder: Path, callback: TrainerCallback) -> dict[str, Any]:
    reporter = OOMReporter(strict=True)
    arguments = TrainingArguments(
        str(folder), max_steps=4, save_steps=2, save_strategy="steps", save_only_model=True, report_to=[], use_cpu=True,
        disable_tqdm=True, eval_strategy="steps", eval_steps=3,
    )  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[reporter, callback])
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        trainer.train()
    return Report.of(reporter.summary)


def line_with(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line and "line_with(" not in line]
    return f"tests/diagnose/oom/{Path(__file__).name}:{number}"


@pytest.mark.slow
@pytest.mark.fresh
def test_a_copy_of_the_state_is_told_with_its_line_and_its_size_and_the_batch_is_not_blamed(tmp_path: Path) -> None:
    report = failed(tmp_path, KeepsCopies("both"))
    oom = report["oom"]
    assert oom["callback"] == "KeepsCopies.on_save"
    assert oom["line"] == line_with("copy.deepcopy((model")
    assert oom["copied_bytes"] == pytest.approx(3 * NUMBERS * FLOAT, rel=0.01)
    assert f"a copy of 192.0 MiB of model and optimizer at {oom['line']}" in oom["why_now"]
    assert not any("batch" in change["text"] for change in report["advice"])
    assert oom["line"] in report["advice"][0]["text"]
    assert "Why now: KeepsCopies.on_save makes a copy of 192.0 MiB" in " ".join(str(report).split())


@pytest.mark.fresh
def test_a_copied_model_is_one_of_the_model_alone(tmp_path: Path) -> None:
    oom = failed(tmp_path, KeepsCopies("model"))["oom"]
    assert oom["why_now"] == f"KeepsCopies.on_save makes a copy of 64.0 MiB of model at {line_with('deepcopy(model)')}."


@pytest.mark.slow
@pytest.mark.fresh
def test_of_another_failure_in_an_event_the_line_is_told(tmp_path: Path) -> None:
    report = failed(tmp_path, KeepsCopies("clones"))
    line = line_with("self.kept = [torch.full(")
    assert report["oom"]["why_now"].startswith(f"KeepsCopies.on_save asked for it at {line}: self.kept = [torch.")
    assert report["oom"].get("copied_bytes") is None
    assert not any("batch" in change["text"] for change in report["advice"])


@pytest.mark.slow
@pytest.mark.fresh
def test_what_a_callback_does_after_an_evaluation_is_a_part_of_that(tmp_path: Path) -> None:
    report = failed(tmp_path, Compares())
    line = line_with("self.pairs = torch.")
    assert (report["oom"]["phase"], report["oom"]["line"]) == ("evaluate", line)
    assert report["advice"][0]["text"] == f"less at once at {line}: 256.0 MiB"


def test_a_librarys_callback_is_left_out_not_rewritten() -> None:
    copies = CallbackFailure(
        callback="StochasticWeightAveraging.setup", line="lightning/pytorch/callbacks/stochastic_weight_avg.py:156",
        source="", copied_bytes=MIB, is_users=False,
    )  # fmt: skip
    failure = failure_of(where="host", phase="startup", step=0, callback=copies)
    (change,) = explained(failure)[1]
    assert change.text == "the training without StochasticWeightAveraging"
