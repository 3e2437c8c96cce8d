"""Scripts under `forgather-mem plan`: unchanged, ended where they would train."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import TrainingArguments

from tests.launch.commands import ROOT, Result, run, watched
from tests.launch.forked_run import run_forked, watched_forked
from tests.training import needs_fully_shard

PLAN = [sys.executable, "-m", "forgather_mem", "plan"]
SCRIPT = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        row = torch.arange(32)
        return {"input_ids": row, "labels": row}

class MyTrainer(Trainer):
    def compute_loss(self, *arguments, **keywords):
        loss = super().compute_loss(*arguments, **keywords)
        LINE
        return loss

config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=SIZE, num_attention_heads=2)
print("of the script")
arguments = TrainingArguments("out", per_device_train_batch_size=4, report_to=[], HALF=True)
MyTrainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Rows()).train()
print("never")
"""

LOOP = """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for number in range(3):
    print("batch", number)
    model(torch.ones(2, 4)).sum().backward(); optimizer.step()
print("trained")
"""
PLANS_ITSELF = """\
import torch
import forgather_mem
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
def step(batch):
    model(batch).sum().backward()
    optimizer.step()
print(forgather_mem.plan(step, model, optimizer, torch.ones(2, 4)))
for number in range(3): model(torch.ones(2, 4)).sum().backward(); optimizer.step()
"""


def planned(
    folder: Path, *options: str, line: str = "pass", half: str = "bf16", start: Callable[..., Result] = run_forked
) -> Result:
    text = SCRIPT.replace("LINE", line).replace("HALF", half).replace("SIZE", "1")
    (folder / "train.py").write_text(text)
    return start([*PLAN, *options, "train.py"], folder)


def test_it_is_planned_where_it_would_train_and_ends(tmp_path: Path) -> None:
    result = planned(tmp_path, "--json", "--set", "batch=4,8", start=run)
    assert result.code == 0, result.err
    small, large = json.loads(result.out)["plans"]
    assert (small["rows"], large["rows"], small["length"]) == (4, 8, 32)
    assert small["peak_bytes"] < large["peak_bytes"]
    assert "of the script" in result.err
    assert "never" not in result.err
    assert not list((tmp_path / "out").iterdir())  # the Trainer makes its folder when it is built


@pytest.mark.fresh
def test_the_first_of_several_ranks_is_planned(tmp_path: Path) -> None:
    result = planned(tmp_path, "--json", "--ranks", "4")
    assert result.code == 0, result.err
    (plan,) = json.loads(result.out)["plans"]
    parts = next(row["parts"] for row in plan["phases"] if (row["step"], row["phase"]) == (2, "optimizer"))
    assert parts["gradients"] == pytest.approx(2 * parts["parameters"], rel=0.01)


@needs_fully_shard
@pytest.mark.fresh
@pytest.mark.skipif(not hasattr(TrainingArguments, "_process_fsdp_args"), reason="transformers 4 has FSDP elsewhere")
def test_a_script_whose_trainer_refuses_fsdp_in_one_process_is_planned_with_its_shards(tmp_path: Path) -> None:
    def parameters(*options: str, half: str = "bf16") -> int:
        (plan,) = json.loads(planned(tmp_path, "--json", *options, half=half).out)["plans"]
        return int(next(row["parts"]["parameters"] for row in plan["phases"] if row["phase"] == "optimizer"))

    assert parameters("--ranks", "4", half="fsdp") == pytest.approx(parameters() / 4, rel=0.05)
    assert "say how many" in planned(tmp_path, half="fsdp").err


@pytest.mark.fresh
def test_weights_may_stay_unread_and_half_precision_needs_no_device(tmp_path: Path) -> None:
    result = planned(tmp_path, "--meta", half="fp16")
    assert result.code == 0, result.err
    assert result.out.startswith("Peak ")


@pytest.mark.fresh
def test_what_stands_in_the_way_is_named_by_file_and_line(tmp_path: Path) -> None:
    result = planned(tmp_path, line="print(loss.item())")
    assert (result.code, result.out) == (1, "")
    assert "forgather-mem: this can't be planned: train.py:14 (print(loss.item())): .item()" in result.err


@pytest.mark.parametrize(("code", "expected"), [(0, 1), (7, 7)])
def test_a_script_without_a_trainer_gets_a_hint_unless_it_failed(tmp_path: Path, code: int, expected: int) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nsys.exit({code})\n")
    result = run([*PLAN, "train.py"], tmp_path, PYTHONPATH=str(ROOT))
    assert result.code == expected
    assert "has not called train() of a transformers Trainer" in result.err
    assert ("forgather_mem.plan(step, model, optimizer, batch)" in result.err) == (code == 0)


@pytest.mark.fresh
def test_a_loop_without_a_trainer_does_not_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    result = run_forked([*PLAN, "train.py"], tmp_path)
    assert (result.code, result.out) == (1, "")
    assert "train.py:6 trains without a transformers Trainer" in result.err
    assert "plan that loop in Python, by forgather_mem.plan(step, model, optimizer, batch)" in result.err
    assert result.err.count("batch 0") == 1
    assert "batch 1" not in result.err
    assert "trained" not in result.err


@pytest.mark.fresh
def test_a_loop_that_changes_its_parameters_by_hand_does_not_train(tmp_path: Path) -> None:
    text = LOOP.replace("optimizer = torch.optim.AdamW(model.parameters())", "").replace("range(3)", "range(9)")
    (tmp_path / "train.py").write_text(text.replace("optimizer.step()", "model.weight.data -= model.weight.grad"))
    result = run_forked([*PLAN, "train.py"], tmp_path)
    assert (result.code, result.out) == (1, "")
    assert "train.py:6 trains without a transformers Trainer" in result.err
    assert "batch 2" in result.err
    assert "batch 3" not in result.err


@pytest.mark.fresh
def test_a_script_that_plans_its_loop_itself_does_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLANS_ITSELF)
    result = run_forked([*PLAN, "train.py"], tmp_path)
    assert result.code == 1
    assert "Peak " in result.err
    assert "train.py:9 trains without a transformers Trainer" in result.err


def test_a_run_may_be_planned_first_and_its_report_compares(tmp_path: Path) -> None:
    text = SCRIPT.replace("LINE", "pass").replace("SIZE", "1").replace("HALF=True", "max_steps=24")
    (tmp_path / "train.py").write_text(text)
    result = watched(["--plan", "train.py"], tmp_path)
    assert "never" in result.plain.out
    assert "Peak " in result.plain.err
    (path,) = tmp_path.glob("out/forgather_mem/*/report.json")  # one training: the planned steps are none
    report = json.loads(path.read_text())
    assert report["steps"] == 24
    planned_parts = {part["name"]: part for part in report["planned"]["parts"]}
    assert set(planned_parts) == {"parameters", "gradients", "optimizer"}
    for part in planned_parts.values():
        assert part["planned_bytes"] == pytest.approx(part["measured_bytes"], abs=100)  # buffers, counts of steps
    assert report["planned"]["planned_bytes"] > sum(part["planned_bytes"] for part in planned_parts.values()) / 2
    assert "parameters, gradients, optimizer as predicted" in " ".join(result.report.split())


@pytest.mark.fresh
def test_what_cannot_be_planned_trains_all_the_same(tmp_path: Path) -> None:
    text = SCRIPT.replace("LINE", "print(f'{loss.item():.0f}'[:0], end='')").replace("SIZE", "1")
    (tmp_path / "train.py").write_text(text.replace("HALF=True", "max_steps=3"))
    result = watched_forked(["--plan", "train.py"], tmp_path)
    assert result.plain.code == 0
    assert "never" in result.plain.out
    assert "forgather-mem: no plan: train.py:" in result.plain.err
    assert "PLAN" not in result.report
