"""Loops of a script's own under `forgather-mem plan`, compared with what their tensors really take."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked
from tests.launch.commands import PLAN, Result, environment, the_plan, working_folders
from tests.launch.forked_run import run_forked
from tests.trees import tree

SLACK_BYTES = 1024  # losses and other scalars that are alive an instant longer
HEAD = """\
import copy, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
def data(rows=128, batch_size=16, **how):
    rows = torch.utils.data.TensorDataset(torch.randn(rows, 64), torch.randint(10, (rows,)))
    return torch.utils.data.DataLoader(rows, batch_size=batch_size, shuffle=True, **how)
def net(hidden=128, last=10):
    first = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    return first.append(nn.Linear(hidden, last))
"""
GAN = """
made, judge = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 64)), net(last=1)
optimizers = torch.optim.Adam(made.parameters()), torch.optim.SGD(judge.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for number, (real, _) in enumerate(data()):
        with torch.no_grad(): judge(real)
        torch.stack([real] * 400).sum()
        fake = made(torch.randn(16, 8))
        optimizers[1].zero_grad()
        (judge(fake.detach()).mean() - judge(real).mean()).backward()
        optimizers[1].step()
        if number % 3 == 2:
            optimizers[0].zero_grad()
            judge(fake).mean().backward()
            optimizers[0].step()
"""
ACCUMULATES = """
model = net()
optimizer = torch.optim.AdamW(model.parameters())
for number, (row, label) in enumerate(data(512)):
    (F.cross_entropy(model(row), label) / 4).backward()
    if number % 4 == 3:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
LIGHTNING = """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, number):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, number):
        self.log("validation", F.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=3, accelerator="cpu", **quiet)
trainer.fit(Module(), data(), data(batch_size=32))
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = net()
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data())
for epoch in range(2):
    for row, label in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(row), label))
            optimizer.step()
            optimizer.zero_grad()
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
model = net()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
for row, label in fabric.setup_dataloaders(data()):
    optimizer.zero_grad()
    fabric.backward(F.cross_entropy(model(row), label))
    optimizer.step()
"""
EVALUATES = """
def evaluate():
    model.eval()
    with torch.no_grad():
        results = torch.cat([model(row) for row, _ in data(256, 64)])
    model.train()
model = net(last=2000)
averaged, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = data()
WHEN_FIRST
for epoch in range(2):
    for row, label in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(row), label).backward()
        optimizer.step()
    WHEN_LATER
"""
EVALUATES_FIRST = EVALUATES.replace("WHEN_FIRST", "evaluate()").replace("WHEN_LATER", "if epoch == 1: evaluate()")
EVALUATES_LATER = EVALUATES.replace("WHEN_FIRST", "").replace("WHEN_LATER", "evaluate()")
EVALUATES_AT_TIMES = (
    EVALUATES.replace("    WHEN_LATER\n", "").replace("WHEN_FIRST", "step = 0")
    + """\
        step += 1
        if step % 5 == 0: evaluate()
"""
)
PENALTY = """
judge = net(last=1)
optimizer = torch.optim.Adam(judge.parameters())
for real, _ in data():
    mixed = (real + torch.randn_like(real)).requires_grad_()
    gradient, = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
    optimizer.zero_grad()
    ((gradient.norm(2, 1) - 1) ** 2).mean().backward()
    optimizer.step()
"""
BY_HAND = """
first, last = torch.randn(64, 512, requires_grad=True), torch.randn(512, 10, requires_grad=True)
for row, label in data():
    F.cross_entropy((row @ first).relu() @ last, label).backward()
    with torch.no_grad():
        for weight in first, last:
            weight -= 0.1 * weight.grad
            weight.grad = None
"""
IN_BACKWARD = """
model = net()
optimizers = {weight: torch.optim.Adam([weight]) for weight in model.parameters()}
def step(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(step)
for row, label in data():
    F.cross_entropy(model(row), label).backward()
"""
CHECKPOINTS = """
from torch.utils.checkpoint import checkpoint
layers, last = nn.ModuleList(net(last=64) for _ in range(4)), nn.Linear(64, 10)
optimizer = torch.optim.AdamW([*layers.parameters(), *last.parameters()])
scaler = torch.amp.GradScaler("cpu")
for row, label in data(1024, 256, num_workers=1):
    with torch.autocast("cpu"):
        for layer in layers:
            row = checkpoint(layer, row, use_reentrant=False)
        loss = F.cross_entropy(last(row), label)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
CLOSURE = """
model = net()
optimizer = torch.optim.RMSprop(model.parameters())
for row, label in data():
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(row), label)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
TWICE = """
def train(last, batch_size):
    model = net(last=last)
    optimizer = torch.optim.AdamW(model.parameters())
    for row, label in data(256, batch_size):
        F.cross_entropy(model(row), label).backward()
        optimizer.step()
        optimizer.zero_grad()
train(10, 16)
train(2000, 64)
"""
FINDER = """
model = net(last=500)
def train(optimizer, size, steps):
    for _ in range(steps):
        F.cross_entropy(model(torch.randn(size, 64)), torch.randint(10, (size,))).backward()
        optimizer.step()
        optimizer.zero_grad()
train(torch.optim.SGD(model.parameters(), lr=0.1), 8, 4)
train(torch.optim.AdamW(model.parameters()), 128, 5)
"""
PADDED = """
def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)
rows = [torch.ones(length, 64) for length in (9, 3, 5, 8, 20, 4, 7, 30, 6, 8, 33, 5, 31, 30, 2, 1)]
model = net(hidden=512)
optimizer = torch.optim.AdamW(model.parameters())
for number, row in enumerate(torch.utils.data.DataLoader(rows, 2, collate_fn=collate)):
    model(row).mean().backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
LATER = """
model = net(hidden=512)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(4):
    model[2].requires_grad_(epoch > 0)
    for row, label in data():
        F.cross_entropy(model(row.repeat(epoch + 1, 1)), label.repeat(epoch + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LISTED = """
model = net(hidden=64, last=16)
optimizer = torch.optim.AdamW(model.parameters())
sizes = (14, 20), (12, 18), (10, 40)
for row in [torch.randn(*size, 64) for size in sizes]:
    found = model(row)
    (found @ found.transpose(1, 2)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LONGEST = LISTED.replace("10, 40)", "10, 40), (2, 150), (12, 19)")
LOOPS = {
    "accelerate": ACCELERATE, "accumulates": ACCUMULATES, "by hand": BY_HAND, "checkpoints": CHECKPOINTS,
    "closure": CLOSURE, "evaluates first": EVALUATES_FIRST, "evaluates later": EVALUATES_LATER, "fabric": FABRIC,
    "evaluates at times": EVALUATES_AT_TIMES, "finder": FINDER, "padded": PADDED, "twice": TWICE,
    "gan": GAN, "in backward": IN_BACKWARD, "lightning": LIGHTNING, "penalty": PENALTY, "grows later": LATER,
    "listed": LISTED, "longest": LONGEST,
}  # fmt: skip


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
    assert (plan["bound"], plan["lengths_differ"]) == ("exact", name == "padded")
    assert ("other models" in plan["phases"][-1]["parts"]) == name.startswith("evaluates")
    of = {"listed": (10, 1), "longest": (2, 1), "finder": (128, 1), "lightning": (16, 3)}
    assert (plan["rows"], plan["accumulation"]) == of.get(name, (plan["rows"], plan["accumulation"]))


@pytest.mark.slow
@pytest.mark.fresh
def test_batches_are_changed_where_a_data_loader_makes_them(tmp_path: Path) -> None:
    other = plan_of(tmp_path, ACCUMULATES.replace("data(512)", "data(1024, 64)"))
    for own in 16, 128:  # a batch that was made before does not count, and of 128 there are not enough for two rounds
        changed = plan_of(tmp_path, ACCUMULATES.replace("data(512)", f"data(1024, {own})"), "--set", "batch=64")
        assert (changed["rows"], changed["peak_bytes"]) == (64, other["peak_bytes"])


OTHER_OPTIMIZER = """
model, (row, label) = net(), next(iter(data()))
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(row), label)
    loss.backward()
    return loss
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    closure()
    optimizer.step()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=6)
for _ in range(8):
    optimizer.step(closure)
"""


@pytest.mark.slow
@pytest.mark.fresh
def test_an_optimizer_that_takes_the_place_of_another_one_is_planned_with_all_its_history(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, OTHER_OPTIMIZER)
    assert (plan["bound"], plan["accumulation"]) == ("at most", 1)
    parts = plan["phases"][-1]["parts"]
    assert parts["optimizer"] > 12 * parts["parameters"]  # six of each kind


@pytest.mark.fresh
def test_batches_of_the_scripts_own_are_not(tmp_path: Path) -> None:
    loop = ACCUMULATES.replace("data(512)", "[(torch.ones(8, 64), torch.ones(8, dtype=torch.long))] * 8")
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
    loop = EVALUATES_LATER.replace("\n        optimizer.step(", acts.replace("\n    ", "\n        "))
    (tmp_path / "train.py").touch()
    before, result = {*tree(tmp_path)}, planned(tmp_path, loop)
    assert result.code == 0, result.err
    assert {*tree(tmp_path)} == before
    assert (tmp_path / "final.pt").read_text() == "trained"
    assert "train.py:" in result.out
    assert "was not done: a plan acts on nothing." in result.out


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


@pytest.mark.fresh
def test_a_script_goes_on_with_values_where_its_model_is_not_trained(tmp_path: Path) -> None:
    result = planned(tmp_path, "net()(torch.ones(2, 64))\nprint('goes on')\nimport os\nos.mkdir('made')")
    assert result.code == 1
    assert "goes on" in result.err
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
            "the script has ended before a whole step could be planned",
        ),
        ("while model(torch.randn(1, 64)).argmax().item() != 0: pass\nprint('decoded')", "decoded"),
    ],
)
def test_a_loop_that_can_never_end_in_a_plan_is_given_up(tmp_path: Path, loop: str, told: str) -> None:
    result = planned(tmp_path, LOOP + loop)
    assert result.code == 1
    assert told in result.err
