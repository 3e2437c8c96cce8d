"""Every kind of ending of a script, after each kind of training: alone, under `run`, and under `plan`.

Watched, a script ends as it does alone: exit code, stdout, its own stderr, its files. Planned, none of its code runs
after the plan: nothing stands in its folder that was not there before the training.
"""

import re
from pathlib import Path

import pytest

from tests.launch.commands import JUDGED, Result, python, run, taken_apart

pytestmark = pytest.mark.soak

TRAININGS = {
    "plain": """
import torch
def train(step=lambda: None):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 2:
            step()
""",
    "Trainer": """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": self.layer(x).sum()}
def train(step=lambda: None):
    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **objects):
            if state.global_step == 3:
                step()
    arguments = TrainingArguments("out", max_steps=4, report_to=[], save_strategy="no", logging_strategy="no",
                                  disable_tqdm=True, use_cpu=True, per_device_train_batch_size=2)
    rows = [{"x": torch.ones(4)} for _ in range(16)]
    Trainer(Model(), arguments, train_dataset=rows, callbacks=[Steps()]).train()
""",
    "Lightning": """
import logging, warnings
warnings.simplefilter("ignore")
import torch
import lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Module(lightning.LightningModule):
    def __init__(self, step):
        super().__init__()
        self.layer, self.step = torch.nn.Linear(4, 1), step
    def training_step(self, batch, number):
        if number == 3:
            self.step()
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def train(step=lambda: None):
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False, accelerator="cpu").fit(Module(step), loader)
""",
}
# Each writes a file after the training where it can; `wrote` is what tells that its code went on
ENDINGS = {
    "end": "train(); wrote()",
    "exit": "train(); wrote(); sys.exit()",
    "exit 3": "train(); wrote(); sys.exit(3)",
    "exit with a text": "train(); wrote(); sys.exit('stopped')",
    "exit in a step": "train(lambda: sys.exit(4))",
    "error": "train(); wrote(); raise ValueError('after')",
    "error with notes": "train()\nerror = ValueError('after'); error.add_note('a note'); wrote(); raise error",
    "chained error":
        "train()\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    wrote(); raise KeyError('b') from error",
    "group of errors": "train(); wrote(); raise ExceptionGroup('two', [ValueError(1), KeyError(2)])",
    "error in a step": "def step():\n    raise RuntimeError('within')\ntrain(step)",
    "error that is caught":
        "def step():\n    raise RuntimeError('within')\ntry:\n    train(step)\nexcept RuntimeError:\n"
        "    wrote()",
    "Ctrl-C raised": "train(); wrote(); raise KeyboardInterrupt",
    "_exit": "train(); wrote(); sys.stdout.flush(); os._exit(5)",
    "abort": "train(); wrote(); sys.stdout.flush(); os.abort()",
    "SIGKILL": "train(); wrote(); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "train(); wrote(); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    "SIGTERM handled":
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\n"
        "train(lambda: os.kill(os.getpid(), signal.SIGTERM)); wrote()",
    "SIGINT in a step": "train(lambda: os.kill(os.getpid(), signal.SIGINT)); wrote()",
    "SIGSEGV": "train(); wrote(); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)",
    "SIGUSR1": "train(); wrote(); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGUSR1)",
    "finally": "try:\n    train()\nfinally:\n    wrote()",
    "bare except": "try:\n    train(lambda: 1 / 0)\nexcept:\n    wrote()",
    "base exception": "try:\n    train()\nexcept BaseException:\n    wrote(); raise\nwrote()",
    "context manager": "with contextlib.ExitStack() as stack:\n    stack.callback(wrote)\n    train()",
    "atexit": "atexit.register(wrote); train()",
    "atexit that raises": "def last():\n    wrote(); raise ValueError('at exit')\natexit.register(last); train()",
    "finalizer": "class Last:\n    def __del__(self):\n        wrote()\nlast = Last(); train()",
    "weakref.finalize": "class Model: pass\nmodel = Model(); weakref.finalize(model, wrote); train()",
    "thread that goes on":
        "def later():\n    time.sleep(1.5); wrote()\nthreading.Thread(target=later).start(); train()",
    "daemon thread":
        "def later():\n    time.sleep(60)\n"
        "threading.Thread(target=later, daemon=True).start(); train(); wrote()",
    "all threads joined":
        "train()\nfor one in threading.enumerate():\n    if one is not threading.main_thread():\n"
        "        one.join(8); assert not one.is_alive()\nwrote()",
    "exit in a thread": "one = threading.Thread(target=sys.exit); one.start(); one.join(); train(); wrote()",
    "child's exit code": "train(); wrote(); sys.exit(subprocess.call([sys.executable, '-c', 'raise SystemExit(9)']))",
    "fork": "train(); wrote(); sys.stdout.flush()\nif os.fork() == 0:\n    os._exit(0)\nos.wait()",
    "exec": "train(); wrote(); sys.stdout.flush(); os.execv('/bin/sh', ['sh', '-c', 'echo other; exit 6'])",
    "excepthook": "sys.excepthook = lambda *a: (wrote(), print('hook'))\ntrain(); 1 / 0",
    "asyncio": "async def main():\n    train(); await asyncio.sleep(0); wrote()\nasyncio.run(main())",
    "stdout closed": "train(); wrote(); sys.stdout.flush(); sys.stdout.close()",
    "generator left open":
        "def rows():\n    try:\n        yield 1\n    finally:\n        wrote()\n"
        "opened = rows(); next(opened); train()",
}  # fmt: skip
HEAD = """
import asyncio, atexit, contextlib, os, signal, subprocess, sys, threading, time, weakref
def wrote():
    with open("after.txt", "a") as file:
        file.write("after")
print("begun")
"""
# What differs from run to run by itself
_VARIES = re.compile(
    r"0x[0-9a-f]+|\d+[.:]\d+|<Thread\(.*?\)>|^.*(?:Warning|warnings?\.warn).*\n(?:  .*\n)?", re.MULTILINE
)


def script(folder: Path, training: str, ending: str) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(f"{HEAD}{TRAININGS[training]}{ENDINGS[ending]}\n", encoding="utf-8")
    return "train.py"


def seen(result: Result, folder: Path) -> dict[str, object]:
    """What somebody has of a run: its files without ours, code and streams."""
    left = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"forgather_mem", "runs"} & set(path.relative_to(folder).parts)
    }
    err = _VARIES.sub("", result.err.replace(str(folder), "."))
    return {"code": result.code, "out": result.out, "err": err.strip(), "files": left}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_without_us(tmp_path: Path, training: str, ending: str) -> None:
    alone, with_us = tmp_path / "alone", tmp_path / "watched"
    plain = run(python(script(alone, training, ending)), alone)
    found = taken_apart(run([*JUDGED, script(with_us, training, ending)], with_us))
    assert seen(found.plain, with_us) == seen(plain, alone)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("ending", [name for name in ENDINGS if "train" in ENDINGS[name]])
def test_a_planned_script_runs_nothing_after_its_plan(tmp_path: Path, training: str, ending: str) -> None:
    folder = tmp_path / "planned"
    name = script(folder, training, ending)
    result = run(python("-m", "forgather_mem", "plan", name), folder)
    assert not (folder / "after.txt").exists(), result
    assert result.code in (0, 1), "planned, or refused with a sentence"
    assert "Peak " in result.out or "forgather-mem: " in result.err, result
