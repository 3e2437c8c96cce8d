"""Scripts under `forgather-mem plan`: unchanged, ended where they would train."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from transformers import TrainingArguments

from tests.launch.commands import PLAN, ROOT, Result, report_in, run, the_plan, working_folders
from tests.launch.forked_run import run_forked, watched_forked
from tests.training import needs_fully_shard
from tests.trees import tree

_TEXTS = yaml.safe_load(Path(__file__).with_name("planned.yaml").read_text(encoding="utf-8"))
SCRIPT, BEFORE, TRAIN, CALLED, FORKS, LINES, LOOP, PLANS_ITSELF = _TEXTS.values()
BEGINS = BEFORE[: BEFORE.index("print(")]


def planned(
    folder: Path, *options: str, line: str = "pass", half: str = "use_cpu", before: str = "",
    train: str = "trainer.train()", start: Callable[..., Result] = run_forked, words: Sequence[str] = (),
) -> Result:  # fmt: skip
    text = SCRIPT.replace("LINE", line).replace("HALF", half)
    (folder / "train.py").write_text(text.replace("BEFORE", before).replace("TRAIN", train))
    return start([*PLAN, *options, "train.py", *words], folder)


def with_work(folder: Path) -> Path:
    """A folder with the work of last week."""
    (folder / "final.pt").write_text("trained")
    (folder / "cache").mkdir()
    (folder / "cache" / "rows").write_text("1 2 3")
    (folder / "out").mkdir()
    return folder


def is_as_before(folder: Path) -> bool:
    names = {".", "train.py", "final.pt", "cache", "cache/rows", "out"}
    logs = [path.read_text() for path in folder.glob("log")]
    return {*tree(folder)} - {"log"} == names and (folder / "final.pt").read_text() == "trained" and not any(logs)


@pytest.mark.slow
@pytest.mark.fresh
def test_it_is_planned_where_it_would_train_and_ends(tmp_path: Path) -> None:
    result = planned(tmp_path, "--json", "--set", "batch=4,8")
    assert result.code == 0, result.err
    small, large = json.loads(result.out)["plans"]
    assert (small["rows"], large["rows"], small["length"]) == (4, 8, 16)
    assert small["peak_bytes"] < large["peak_bytes"]
    assert "of the script" in result.err
    assert "never" not in result.err
    assert not list((tmp_path / "out").iterdir())  # the Trainer makes its folder when it is built
    (note,) = json.loads(result.out)["notes"]
    assert note.startswith("Before it was planned the script acted as in a run: os.mkdir 'out'")
    assert all(plan["notes"] == [] for plan in (small, large))


def test_once_it_is_planned_nothing_of_the_script_runs(tmp_path: Path) -> None:
    with_work(tmp_path)
    (tmp_path / "log").touch()
    (tmp_path / "starts.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])\nopen('starts.py', 'a').write('1')\n"
    )
    before = tree(tmp_path)
    starts = "import subprocess\nsubprocess.Popen(['sleep', '99'], env={}, start_new_session=True)\n"
    result = planned(
        tmp_path, before=BEFORE, train=starts + TRAIN,
        start=lambda words, folder: run([*words[:-1], "starts.py"], folder),
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.out.startswith("Peak ")
    assert "of the script" in result.err
    assert result.out.splitlines()[-1] == (
        "Before it was planned the script acted as in a run: write 'log', subprocess.Popen 'sleep'."
    )
    time.sleep(1.5)  # longer than what was begun waits
    assert str(tmp_path) not in working_folders(), "a process without our variables is left"
    after = tree(tmp_path)
    assert {name: state for name, state in after.items() if name not in (".", "train.py", "log")} == {
        name: state for name, state in before.items() if name not in (".", "train.py", "log")
    }


@pytest.mark.fresh
def test_a_step_acts_on_nothing_and_its_lines_are_named(tmp_path: Path) -> None:
    with_work(tmp_path)
    (tmp_path / "train.py").touch()
    names = {*tree(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        before = "import contextlib, os, shutil, socket, subprocess, sys"
        result = planned(tmp_path, line=LINES.strip(), before=before, words=[str(listener.getsockname()[1])])
        assert result.code == 0, result.err
        with pytest.raises(TimeoutError):
            listener.accept()
    assert {*tree(tmp_path)} == names
    assert (tmp_path / "final.pt").read_text() == "trained"
    told = [line for line in result.out.splitlines() if line.endswith("): a plan acts on nothing.")]
    assert len(told) == 8, result.out  # a `finally` behind the steps is none of them
    assert all(line.startswith("What train.py:") for line in told)
    assert 'What train.py:15 (os.remove("final.pt")) would do outside was not done (os.remove ' in "".join(told)


@pytest.mark.fresh
def test_where_planning_fails_nothing_of_the_script_runs_either(tmp_path: Path) -> None:
    with_work(tmp_path)
    # What a model can do is asked for outside of the child that plans, too
    before = """
class Stop(BaseException): pass
def stop(model):
    if os.getpid() == own: raise Stop
    return True
own = os.getpid()
"""
    train = TRAIN.replace(
        "trainer.train()", "type(trainer.model).supports_gradient_checkpointing = property(stop); trainer.train()"
    )
    before = BEFORE[: BEFORE.index("log = ")] + before
    result = planned(tmp_path, "--card", "1GiB", before=before, train=train)
    assert (result.code, result.out) == (1, ""), result.err
    assert "forgather-mem: this can't be planned: planning has failed with Stop()" in result.err
    assert is_as_before(tmp_path)


@pytest.mark.fresh
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_ends_a_plan_at_once_and_no_handler_of_the_scripts_runs(tmp_path: Path, name: str) -> None:
    with_work(tmp_path)
    kill = f"subprocess.Popen(['sh', '-c', 'sleep 2; kill -USR1 $PPID; kill -{name} $PPID'])"
    train = TRAIN.replace("trainer.train()", f"{kill}; trainer.train()")
    result = planned(tmp_path, line="time.sleep(100)", before=BEGINS + CALLED, train=train)
    assert (result.code, result.out) == (1, ""), result.err
    assert f"forgather-mem: this can't be planned: it was ended by SIG{name}" in result.err
    assert is_as_before(tmp_path)


@pytest.mark.slow
@pytest.mark.fresh
def test_what_the_script_has_called_by_others_acts_on_nothing_while_it_is_planned(tmp_path: Path) -> None:
    with_work(tmp_path)
    before = BEGINS + CALLED
    result = planned(tmp_path, line="time.sleep(1)", before=before, train=FORKS + TRAIN)
    assert result.code == 0, result.err
    assert is_as_before(tmp_path)


@pytest.mark.slow
@pytest.mark.fresh
def test_a_training_in_a_thread_is_planned_once_and_ends_all(tmp_path: Path) -> None:
    with_work(tmp_path)
    train = """
threads = [threading.Thread(target=trainer.train) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
write("joined")
"""
    result = planned(tmp_path, before="import threading\nwrite = print", train=train)
    assert result.code == 0, result.err
    assert result.out.count("Peak ") == 1
    assert "joined" not in result.err


@pytest.mark.slow
@pytest.mark.fresh
def test_the_first_of_several_ranks_is_planned(tmp_path: Path) -> None:
    plan = the_plan(planned(tmp_path, "--json", "--ranks", "4", half="ddp_backend='gloo', bf16"))
    parts = next(row["parts"] for row in plan["phases"] if (row["step"], row["phase"]) == (2, "optimizer"))
    assert parts["gradients"] == pytest.approx(2 * parts["parameters"], rel=0.01)


@pytest.mark.slow
@needs_fully_shard
@pytest.mark.fresh
@pytest.mark.skipif(not hasattr(TrainingArguments, "_process_fsdp_args"), reason="transformers 4 has FSDP elsewhere")
def test_a_script_whose_trainer_refuses_fsdp_in_one_process_is_planned_with_its_shards(tmp_path: Path) -> None:
    def parameters(*options: str, half: str = "bf16") -> int:
        plan = the_plan(planned(tmp_path, "--json", *options, half=half))
        return int(next(row["parts"]["parameters"] for row in plan["phases"] if row["phase"] == "optimizer"))

    assert parameters("--ranks", "4", half="fsdp") == pytest.approx(parameters() / 4, rel=0.05)
    assert "say how many" in planned(tmp_path, half="fsdp").err


@pytest.mark.slow
@pytest.mark.fresh
def test_weights_may_stay_unread_and_half_precision_needs_no_device(tmp_path: Path) -> None:
    result = planned(tmp_path, "--meta", half="fp16")
    assert result.code == 0, result.err
    assert result.out.startswith("Peak ")


@pytest.mark.fresh
def test_what_stands_in_the_way_is_named_by_file_and_line(tmp_path: Path) -> None:
    result = planned(tmp_path, line="loss.long().reshape(1).bincount()")
    assert (result.code, result.out) == (1, "")
    assert (
        "forgather-mem: this can't be planned: train.py:14 (loss.long().reshape(1).bincount()): the size of"
        in result.err
    )
    assert "Before it was planned the script acted as in a run: os.mkdir 'out'." in result.err


@pytest.mark.parametrize(("code", "expected"), [(0, 1), (7, 7)])
def test_a_script_that_trains_nothing_is_told_so(tmp_path: Path, code: int, expected: int) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nsys.exit({code})\n")
    result = run([*PLAN, "train.py", "--card", "2GiB"], tmp_path, PYTHONPATH=str(ROOT))
    assert result.code == expected
    assert result.err.startswith(
        "forgather-mem: --card stands behind train.py, which gets it; options of ours stand before it\n"
    )
    assert "has trained nothing that was noticed" in result.err


@pytest.mark.fresh
def test_a_loop_without_a_trainer_is_planned_where_it_begins_and_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    result = run_forked([*PLAN, "--json", "train.py"], tmp_path)
    plan = the_plan(result)
    assert plan["rows"] == 2
    # Weights, gradients and both averages are 20 numbers each; each of two tensors has its count of steps
    at_the_end = next(row for row in plan["phases"] if (row["step"], row["phase"]) == (2, "optimizer"))
    assert {name: at_the_end["parts"][name] for name in ("parameters", "gradients", "optimizer")} == {
        "parameters": 80, "gradients": 80, "optimizer": 2 * 80 + 2 * 4
    }  # fmt: skip
    assert result.err.count("batch 0") == 1
    assert "batch 1" not in result.err
    assert "trained" not in result.err


@pytest.mark.fresh
def test_such_a_loop_ends_without_its_cleanup(tmp_path: Path) -> None:
    with_work(tmp_path)
    loop = LOOP.replace("for number", "import atexit; atexit.register(print, 'at exit')\ntry:\n  for number").replace(
        "\n    ", "\n      "
    )
    text = loop.replace('print("trained")', "finally:\n  torch.save(model.state_dict(), 'final.pt'); print('trained')")
    (tmp_path / "train.py").write_text(text)
    before, result = tree(tmp_path), run_forked([*PLAN, "train.py"], tmp_path)
    assert result.code == 0, result.err
    assert "batch 0" in result.err
    assert not {"trained", "at exit"} & {*result.err.split("\n")}
    assert tree(tmp_path) == before


BY_HAND = "for weight in model.parameters(): weight.data -= weight.grad"
BACKWARD = "model(torch.ones(2, 4)).sum().backward()"


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize(
    ("backward", "optimizer"),
    [
        (BACKWARD, "None"),
        (BACKWARD, "torch.optim.AdamW(model.parameters())"),  # and is never used
        ("model.weight.grad, = torch.autograd.grad(model(torch.ones(2, 4)).sum(), [model.weight])", "None"),
        (
            "model.weight.grad = torch.func.grad(lambda w: (torch.ones(2, 4) @ w.T).sum())(model.weight.detach())",
            "None",
        ),
        (f"from torch.autograd import backward; {BACKWARD}", "model.weight.register_hook(lambda grad: grad)"),
    ],
    ids=["by hand", "unused optimizer", "autograd.grad", "functional", "hook"],
)
def test_a_loop_that_changes_its_parameters_by_hand_is_planned(tmp_path: Path, backward: str, optimizer: str) -> None:
    with_work(tmp_path)
    loop = f"import torch\nmodel = torch.nn.Linear(4, 4, bias=False)\noptimizer = {optimizer}\ntry:\n"
    loop += f"  for number in range(99):\n    print('batch', number)\n    {backward}\n    with torch.no_grad():\n"
    (tmp_path / "train.py").write_text(f"{loop}      {BY_HAND}\nfinally:\n  torch.save({{}}, 'final.pt')\n")
    before, result = tree(tmp_path), run_forked([*PLAN, "--json", "train.py"], tmp_path)
    plan = the_plan(result)
    assert plan["phases"][-1]["parts"].get("parameters", 64) == 64  # inside of torch.func they are not told apart
    assert any("AdamW has not stepped" in note for note in plan["notes"]) == (optimizer.startswith("torch.optim"))
    assert "batch 0" in result.err
    assert "batch 1" not in result.err
    assert tree(tmp_path) == before


@pytest.mark.fresh
def test_a_loop_whose_steps_are_threads_does_not_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import threading, torch\nmodel = torch.nn.Linear(4, 4)\n"
        f"def step(): {BACKWARD}\n"
        "for number in range(9):\n  print('batch', number)\n"
        "  thread = threading.Thread(target=step); thread.start(); thread.join()\n"
    )
    result = run_forked([*PLAN, "train.py"], tmp_path)
    assert (result.code, result.out) == (1, "")
    assert "this can't be planned: the process that planned" in result.err  # a fork has the thread alone
    assert "batch 1" not in result.err


def test_with_a_torch_that_is_not_met_a_script_ends_where_it_imports_it(tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    for name in "torch/__init__.py", "torch/optim/__init__.py", "torch/optim/optimizer.py":
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text("import torch.optim.optimizer\nprint('trained')\n")
    result = run([*PLAN, "train.py"], tmp_path, PYTHONPATH=str(ROOT))
    assert (result.code, result.out) == (1, "")
    assert "this can't be planned: planning has failed with KeyError('torch.nn.modules.module')" in result.err
    assert "trained" not in result.err


def test_where_a_plan_cannot_begin_in_a_process_it_ends(tmp_path: Path) -> None:
    result = run(
        [sys.executable, "-c", "print('trained')"],
        tmp_path,
        PYTHONPATH=f"{ROOT / 'forgather_mem' / 'launch' / 'on_path'}:{ROOT}",
        FORGATHER_MEM_PLAN=str(tmp_path / "gone"),
    )
    assert (result.code, result.out) == (1, "")
    assert "FileNotFoundError" in result.err


@pytest.mark.fresh
def test_a_script_that_plans_its_loop_itself_does_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLANS_ITSELF)
    result = run_forked([*PLAN, "train.py"], tmp_path)
    assert result.code == 0, result.err
    assert result.out.splitlines()[0] in result.err, "the script's own plan is of the same loop"


@pytest.mark.slow
@pytest.mark.fresh
def test_a_run_may_be_planned_first_and_its_report_compares(tmp_path: Path) -> None:
    text = SCRIPT.replace("LINE", "open('steps', 'a').write('x')").replace("HALF=True", "max_steps=24")
    (tmp_path / "train.py").write_text(text.replace("BEFORE", "").replace("TRAIN", "trainer.train()"))
    result = watched_forked(["--plan", "train.py"], tmp_path)
    assert (tmp_path / "steps").read_text() == "x" * 24, "those of the plan are not there"
    assert "never" in result.plain.out
    assert "Peak " in result.plain.err
    assert result.plain.err.count("was not done") == 1, "what is watched is no act of the script's"
    report = report_in(tmp_path / "out")  # one training: the planned steps are none
    assert report["steps"] == 24
    planned_parts = {part["name"]: part for part in report["planned"]["parts"]}
    assert set(planned_parts) == {"parameters", "gradients", "optimizer"}
    for part in planned_parts.values():
        assert part["planned_bytes"] == pytest.approx(part["measured_bytes"], abs=100)  # buffers, counts of steps
    assert report["planned"]["planned_bytes"] > sum(part["planned_bytes"] for part in planned_parts.values()) / 2
    assert "parameters, gradients, optimizer as predicted" in " ".join(result.report.split())


@pytest.mark.slow
@pytest.mark.fresh
def test_what_cannot_be_planned_trains_all_the_same(tmp_path: Path) -> None:
    text = SCRIPT.replace("LINE", "loss.long().reshape(1).bincount()")
    text = text.replace("HALF=True", "max_steps=3").replace("BEFORE", "").replace("TRAIN", "trainer.train()")
    (tmp_path / "train.py").write_text(text)
    result = watched_forked(["--plan", "train.py"], tmp_path)
    assert result.plain.code == 0
    assert "never" in result.plain.out
    assert "forgather-mem: no plan: train.py:" in result.plain.err
    assert "PLAN" not in result.report


@pytest.mark.slow
def test_the_compiler_is_loaded_where_it_is_used_and_is_off(tmp_path: Path) -> None:
    loop = """import sys, torch
optimizer = torch.optim.Adam((model := torch.nn.Linear(64, 64)).parameters())
for _ in range(3):
    model(torch.zeros(2, 64)).sum().backward(), optimizer.step()
    assert "torch._dynamo.eval_frame" not in sys.modules
"""
    for more, is_compiled in (("", False), ("    break\ntorch.compile(model)(torch.zeros(2, 64))", True)):
        (path := tmp_path / "train.py").write_text(loop + more)
        plan = [sys.executable, "-m", "forgather_mem", "plan", str(path)]
        told = subprocess.run(plan, capture_output=True, text=True, check=True).stdout
        assert ("torch.compile is planned as if it were off" in told) == is_compiled
