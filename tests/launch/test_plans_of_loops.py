"""Loops of a script's own under `forgather-mem plan`, compared with what their tensors really take."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forked import Forked
from tests.launch.commands import PLAN, Result, environment, the_plan, working_folders
from tests.launch.forked_run import run_forked
from tests.trees import tree

SLACK_BYTES = 1024  # losses and other scalars that are alive an instant longer
_TEXTS = yaml.safe_load(Path(__file__).with_name("loops.yaml").read_text(encoding="utf-8"))
HEAD, LOOPS = _TEXTS["begin"], _TEXTS["loops"]


def planned(folder: Path, loop: str, *options: str) -> Result:
    (folder / "train.py").write_text(HEAD + loop)
    return run_forked([*PLAN, *options, "train.py"], folder)


def plan_of(folder: Path, loop: str, *options: str) -> Any:
    return the_plan(planned(folder, loop, "--json", *options))


def real_peak_bytes(folder: Path, loop: str) -> int:
    (folder / "train.py").write_text(HEAD + loop)
    runner = Path(__file__).with_name("counted_script.py")
    code, out, err = Forked(runner, ["train.py"], folder, environment()).wait()
    assert code == 0, err
    return int(out)


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("name", LOOPS)
def test_a_plan_is_what_the_tensors_take(tmp_path: Path, name: str) -> None:
    real, plan = real_peak_bytes(tmp_path, LOOPS[name]), plan_of(tmp_path, LOOPS[name])
    assert plan["peak_bytes"] == pytest.approx(real, abs=SLACK_BYTES)
    assert (plan["phase"] == "evaluate") == name.startswith("evaluates")
    assert (plan["bound"], plan["lengths_differ"]) == ("exact", name in ("padded", "chosen"))
    assert ("other models" in plan["phases"][-1]["parts"]) == name.startswith("evaluates")
    assert any("Kept from step to step: `kept`" in note for note in plan["notes"]) == (name == "keeps copies")
    of = {"chosen": (8, 1), "listed": (10, 1), "longest": (2, 1), "finder": (128, 1), "lightning": (16, 3)}
    assert (plan["rows"], plan["accumulation"]) == of.get(name, (plan["rows"], plan["accumulation"]))


@pytest.mark.slow
@pytest.mark.fresh
def test_batches_are_changed_where_a_data_loader_makes_them(tmp_path: Path) -> None:
    other = plan_of(tmp_path, LOOPS["accumulates"].replace("data(512)", "data(1024, 64)"))
    for own in 16, 128:  # a batch that was made before does not count, and of 128 there are not enough for two rounds
        made = plan_of(tmp_path, LOOPS["accumulates"].replace("data(512)", f"data(1024, {own})"), "--set", "batch=64")
        assert (made["rows"], made["peak_bytes"]) == (64, other["peak_bytes"])


@pytest.mark.slow
@pytest.mark.fresh
def test_an_optimizer_that_takes_the_place_of_another_one_is_planned_with_all_its_history(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, _TEXTS["others"]["another optimizer"])
    assert (plan["bound"], plan["accumulation"]) == ("at most", 1)
    parts = max(plan["phases"], key=lambda row: row["bytes"])["parts"]
    assert parts["optimizer"] > 12 * parts["parameters"]  # six of each kind


@pytest.mark.fresh
def test_a_plan_that_ends_early_is_no_end_of_what_the_peak_can_be(tmp_path: Path) -> None:
    loop = """
for number, (row, label) in enumerate(data(512)):
    loss = F.cross_entropy(model(row), label)
    if loss > 1: loss = loss + model(torch.cat([row] * 9)).mean()
    elif number > 5: raise ValueError("early")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    begin = "model = net()\noptimizer = torch.optim.AdamW(model.parameters())"
    plan = plan_of(tmp_path, begin + loop)
    assert plan["bound"] == "at least"
    (note,) = plan["notes"]
    assert note.startswith("The peak depends on a value (train.py:")
    assert note.endswith(", as far as it is planned: not all plans come to the end.")
    fails = plan_of(tmp_path, begin + loop.replace("loss > 1", "number < 6").replace("number > 5", "True"))
    assert fails["notes"][0].startswith("Not in the plan is what comes after an error: train.py:")


@pytest.mark.fresh
def test_batches_of_the_scripts_own_are_not(tmp_path: Path) -> None:
    loop = LOOPS["accumulates"].replace("data(512)", "[(torch.ones(8, 64), torch.ones(8, dtype=torch.long))] * 8")
    result = planned(tmp_path, loop, "--set", "batch=64")
    assert (result.code, result.out) == (1, "")
    assert "batches of another size can't be planned: torch's DataLoader does not make them" in result.err
    refused = planned(tmp_path, loop, "--json", "--ranks", "2")
    assert (refused.code, "--ranks is for a Trainer" in json.loads(refused.out)["refused"]) == (1, True)


@pytest.mark.slow
@pytest.mark.fresh
def test_what_a_loop_does_beside_computing_is_not_done_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "final.pt").write_text("trained")
    acts = "\n    torch.save(model.state_dict(), 'final.pt'); __import__('os').remove('final.pt')\n    optimizer.step("
    loop = LOOPS["evaluates later"].replace("\n        optimizer.step(", acts.replace("\n    ", "\n        "))
    (tmp_path / "train.py").touch()
    before, result = {*tree(tmp_path)}, planned(tmp_path, loop)
    assert result.code == 0, result.err
    assert {*tree(tmp_path)} == before
    assert (tmp_path / "final.pt").read_text() == "trained"
    assert "train.py:" in result.out
    assert "was not done (open 'final.pt'): a plan acts on nothing." in result.out


@pytest.mark.slow
@pytest.mark.fresh
def test_a_model_may_be_called_before_a_trainer_trains(tmp_path: Path) -> None:
    trains = """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(config)
CALL
rows = [{"input_ids": torch.arange(32), "labels": torch.arange(32)}] * 64
arguments = TrainingArguments("out", per_device_train_batch_size=4, report_to=[], use_cpu=True)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
    alone = plan_of(tmp_path, trains.replace("CALL", ""))
    called = plan_of(tmp_path, trains.replace("CALL", "with torch.no_grad(): model(torch.ones(8, 64).long())"))
    assert called == alone


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("name", ["saved", "new loss"])
def test_a_loop_may_save_its_model_and_make_its_loss_anew(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, _TEXTS["others"][name])
    assert (plan["bound"], plan["notes"]) == ("exact", [])


@pytest.mark.fresh
def test_a_script_goes_on_with_values_where_its_model_is_not_trained(tmp_path: Path) -> None:
    result = planned(tmp_path, "net()(torch.ones(2, 64))\nimport os\nos.mkdir('made')")
    assert result.code == 1
    assert "has trained nothing that was noticed" in result.err
    assert os.path.isdir(tmp_path / "made")


LOOP = """
model = net()
optimizer = torch.optim.AdamW(model.parameters())
def step(row, label):
    F.cross_entropy(model(row), label).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_pool_of_processes_is_ended_whatever_it_starts_meanwhile(tmp_path: Path) -> None:
    pool = """
import multiprocessing
def label(number): return torch.full((16,), number % 10)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print("pool", *[process.pid for process in pool._pool])
    for labels in pool.imap(label, range(3)):
        step(torch.randn(16, 64), labels)
"""
    (tmp_path / "train.py").write_text(HEAD + LOOP + pool)
    subprocess.run([*PLAN, "train.py"], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    assert str(tmp_path) not in working_folders()


@pytest.mark.soak  # waits for ten seconds
@pytest.mark.fresh
@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (
            "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"
            "    for _ in range(9):\n        step(*pool.submit(lambda: next(iter(data()))).result())",
            "it waits for a thread, another process or input, which a plan does not have",
        ),
        (
            "import threading\ndone = threading.Event()\nthreading.Timer(3, done.set).start()\n"
            "net()(torch.ones(2, 64))\ndone.wait()\nprint('goes on')",
            "goes on",
        ),
        (
            "while True:\n    try:\n        if model(torch.ones(2, 64)).long().flatten().bincount().sum() < 0: break\n"
            "    except Exception: continue\n    optimizer.step()",
            "1,000 calls of models have come before a whole step could be planned",
        ),
        ("while model(torch.randn(1, 64)).argmax().item() != 0: pass\nprint('decoded')", "decoded"),
    ],
)
def test_a_loop_that_can_never_end_in_a_plan_is_given_up(tmp_path: Path, loop: str, told: str) -> None:
    result = planned(tmp_path, LOOP + loop)
    assert result.code == 1
    assert told in result.err
