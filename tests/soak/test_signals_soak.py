"""200 signals at random moments of a script, collections among them: what its handler raises arrives each time."""

from pathlib import Path

import pytest

from tests.launch.commands import RUN, python, run

pytestmark = pytest.mark.soak
NUM_SIGNALS = 200

HEAD = """
import gc, random, signal
import torch
class Preempted(Exception):
    pass
KINDS = [Preempted, KeyboardInterrupt, SystemExit]
chance, arrived, num_raised = random.Random(0), 0, 0
def handler(number, frame):
    global num_raised
    num_raised += 1
    raise KINDS[num_raised % len(KINDS)]("from a handler")
signal.signal(signal.SIGALRM, handler)
def cycle():
    found = []
    found.append(found)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
"""
# In each the time between two signals is spent in steps, their collections, and what we do in them. A Trainer's
# libraries look for modules at each step, and Python's search for these drops a `TimeoutError`, as without us
WAYS = {
    "plain": """
KINDS.append(TimeoutError)
def step(optimizer=torch.optim.SGD(model.parameters(), lr=0.1)):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(50):
        cycle()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # one that dies
    gc.collect(chance.randrange(3))
def training():
    while num_raised == before:
        step()
for _ in range(20):  # the training has begun
    step()
longest_s = 0.02
""",
    "Trainer": """
from transformers import Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x):
        for _ in range(50):
            cycle()
        gc.collect(chance.randrange(3))
        return {"loss": self.inner(x).sum()}
arguments = TrainingArguments("out", max_steps=10_000, report_to=[], save_strategy="no", logging_steps=2,
                              disable_tqdm=True, use_cpu=True, per_device_train_batch_size=2)
rows = [{"x": torch.ones(4)} for _ in range(16)]
class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **objects):
        control.should_training_stop = num_raised != before
def training():
    Trainer(Model(), arguments, train_dataset=rows, callbacks=[Stop()]).train()
longest_s = 0.5
""",
}
TAIL = """
gc.freeze()
gc.set_threshold(100, 5, 5)  # collections all the time, but short ones
many = [[number] for number in range(5_000)]
for number in range({num_signals}):
    before = num_raised
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, longest_s))
        training()
    except tuple(KINDS) as error:
        arrived += str(error) == "from a handler"
print("arrived", arrived, "of", num_raised)
"""


@pytest.mark.parametrize("with_us", [False, True], ids=["alone", "watched"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_handler_raises_arrives_each_time(tmp_path: Path, way: str, with_us: bool) -> None:
    tail = TAIL.format(num_signals=NUM_SIGNALS)
    (tmp_path / "train.py").write_text(f"{HEAD}{WAYS[way]}{tail}", encoding="utf-8")
    words = [*RUN, "train.py"] if with_us else python("train.py")
    result = run(words, tmp_path, timeout=3000)
    assert result.code == 0, result
    assert f"arrived {NUM_SIGNALS} of {NUM_SIGNALS}" in result.out, result
    assert "Exception ignored" not in result.err, result.err
    assert "failed; training continues" not in result.err, result.err
