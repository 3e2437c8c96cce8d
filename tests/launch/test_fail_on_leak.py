"""A command that leaks ends with 3 when it was asked for."""

import json
from pathlib import Path

import pytest

from tests.launch.commands import watched
from tests.launch.forked_run import watched_forked

# A plain model, so that the process has few seconds to run; C's memory, so that no object of Python's holds it
LEAKS = """\
import ctypes
import torch
from transformers import Trainer, TrainingArguments

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        block = libc.malloc(ctypes.c_size_t(60_000))
        ctypes.memset(block, 1, 60_000)
        logits = self.layer(x)
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


rows = [{"x": torch.ones(8), "labels": torch.ones(1)} for _ in range(32)]
settings = dict(max_steps=240, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
Trainer(Net(), TrainingArguments("out", **settings), train_dataset=rows).train()
"""


@pytest.mark.fresh
def test_a_leak_of_native_memory_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKS)
    result = watched_forked(["--fail-on", "leak", "--report", "report.json", "train.py"], tmp_path)
    assert result.plain.code == 3, result.plain.err
    leak = json.loads((tmp_path / "report.json").read_text())["leak"]
    assert (leak["verdict"], leak["where"], leak["sure"]) == ("leak", "host", "yes")
    assert 0.75 < leak["bytes_per_step"] / 60_000 < 1.25
    (top,) = leak["suspects"]
    assert (top["held_by"], top["kind"]) == (None, "made")
    assert top["source_line"].startswith("block = libc.malloc(")
    told = " ".join(result.report.split())
    assert told.endswith("forgather-mem: a leak was found (--fail-on leak)"), "nothing denies it"


def test_without_a_training_there_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    result = watched(["--fail-on", "leak", "train.py"], tmp_path)
    assert result.plain.code == 4, result.plain.err
    assert "--fail-on leak: no training was watched for leaks" in " ".join(result.report.split())


@pytest.mark.fresh
def test_what_could_not_be_judged_does_not_pass_for_free_of_leaks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKS.replace("max_steps=240", "max_steps=12"))
    result = watched_forked(["--fail-on", "leak", "train.py"], tmp_path)
    assert result.plain.code == 4, result.plain.err
    assert "--fail-on leak: no verdict after 12 steps" in " ".join(result.report.split())


def test_the_commands_own_failure_is_told_before_a_missing_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    assert watched(["--fail-on", "leak", "train.py"], tmp_path).plain.code == 7
