"""`forgather-mem run` of trainings that have no Trainer of transformers."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forked import Forked
from tests.launch.commands import REPORT, ROOT, RUN, Watched, environment, report_in, taken_apart, watched
from tests.launch.forked_run import run_forked, watched_forked

_TEXTS = yaml.safe_load(Path(__file__).with_name("loops.yaml").read_text(encoding="utf-8"))
PLAIN, LIGHTNING, LARGE_AT_FIRST, SEVERAL, OWN, FRAMEWORKS, PREDICTS, COMPUTES = _TEXTS["watched"].values()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def as_alone(folder: Path, text: str, *, is_real: bool = False) -> tuple[Watched, dict[str, Any]]:
    """The outcome of this script when it is watched; what it prints and its exit code are the same without us.

    One command of this file is real.
    """
    (folder / "script.py").write_text(text)
    code, out, _ = Forked(folder / "script.py", [], folder, environment()).wait()
    with_us = (watched if is_real else watched_forked)(["script.py"], folder)
    assert (with_us.plain.code, with_us.plain.out) == (code, out), with_us.plain.err
    return with_us, report_in(folder)


@pytest.mark.slow
@pytest.mark.fresh
def test_the_leak_of_a_plain_loop_is_found_with_its_holder_and_line(tmp_path: Path) -> None:
    result, report = as_alone(tmp_path, PLAIN + "main(150)\n", is_real=True)
    assert (report["steps"], report["run"]["end"], report["leak"]["verdict"]) == (150, "finished", "leak")
    suspect = report["leak"]["suspects"][0]
    assert "local 'kept' of main" in suspect["held_by"]
    assert suspect["allocated_at"].endswith(
        f":{PLAIN.splitlines().index('        kept.append(rows.repeat(4, 8))') + 1}"
    )
    assert "150 steps" in result.report


@pytest.mark.slow
@pytest.mark.fresh
def test_a_loop_with_another_model_is_a_training_of_its_own_after_one_that_can_be_judged(tmp_path: Path) -> None:
    kept = PLAIN.replace("    kept = []", "    global alive").replace(
        "kept.append(rows.repeat(4, 8))", "alive = model, optimizer"
    )
    (tmp_path / "script.py").write_text(PLAIN + kept.replace("main", "again") + "main(40)\nagain(70)\nagain(30)\n")
    result = watched_forked(["script.py"], tmp_path)
    found = [read(path) for path in sorted(tmp_path.glob("forgather_mem/*/report.json"))]
    assert [(report["steps"], report["leak"]["verdict"]) for report in found][1:] == [(30, "not enough data")]
    assert found[0]["steps"] == 110, "40 steps are too few to be judged for themselves"
    assert found[1]["run"]["settings"]["forward.dtypes"] == "float32", "its model is heard, too"
    assert "of 2 trainings; of the others:" in result.report


@pytest.mark.slow
@pytest.mark.fresh
def test_what_frameworks_play_is_a_phase_and_their_epochs_are_told(tmp_path: Path) -> None:
    for name, text in FRAMEWORKS.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    text = PLAIN.replace(
        "    for step in range", "    from skorch.net import NeuralNet\n    for step in range"
    ).replace("        rows =", "        step % 20 or OnPolicyAlgorithm().collect_rollouts(model)\n        rows =")
    text = text.replace("range(steps)", "(one for half in (range(20), range(20, 60)) for one in run(half))").replace(
        "        rows =", "        list(run([])), step == 30 and NeuralNet().on_epoch_end()\n        rows ="
    )
    head = "from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm\n"
    head += "from ignite.engine.engine import Engine\nrun = Engine()._run_once_on_dataset_as_gen\n"
    _, report = as_alone(tmp_path, head + text + "main(60)\n")
    assert {peak["phase"] for peak in report["peaks"]} >= {"generate", "forward"}
    assert "evaluate" not in {peak["phase"] for peak in report["peaks"]}
    (log,) = tmp_path.glob("forgather_mem/*/memory.rank0.jsonl")
    epochs = {row.get("epoch") for row in map(json.loads, log.read_text().splitlines()) if "event" in row}
    assert 2.0 in epochs <= {0, 1.0, 2.0, 3.0}, "by step 30 one of skorch and one of Ignite, whose evaluations are none"


@pytest.mark.slow
@pytest.mark.fresh
def test_what_was_before_the_first_step_is_told_with_its_peak_its_curve_and_an_error_at_the_end(tmp_path: Path) -> None:
    result, report = as_alone(tmp_path, LARGE_AT_FIRST + PLAIN + "main(60)\nraise ValueError('afterwards')\n")
    assert (result.plain.code, report["run"]["end"], report["steps"]) == (1, "exception", 60)
    peak = report["peaks"][0]
    assert (peak["where"], peak["phase"]) == ("host", "startup")
    assert peak["bytes"] == report["host"]["rss_peak_bytes"] >= report["host"]["rss_end_bytes"] + 200 * 2**20
    assert report["run"]["startup_s"] > 1.2 > 0 < report["run"]["wall_s"]
    assert "startup or step 1" in result.report
    assert "STARTUP" in result.report
    (log,) = tmp_path.glob("forgather_mem/*/memory.rank0.jsonl")
    header = json.loads(log.read_text().partition("\n")[0])
    assert max(size for _, size in header["startup"]) >= 400_000_000
    assert header["startup"][-1][0] <= report["run"]["startup_s"]


BY_HAND = PLAIN.replace("torch.optim.AdamW(model.parameters())", "None").replace(
    "        optimizer.step()\n        optimizer.zero_grad()\n", "        for parameter in model.parameters():\n"
    "            parameter.data.add_(parameter.grad, alpha=-0.01)\n" "        model.zero_grad(set_to_none=False)\n"
    "        watching and watching.step()\n",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.fresh
def test_of_several_optimizers_all_parts_of_ours_hear(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SEVERAL)
    assert "== 20 steps" in watched_forked(["script.py"], tmp_path).report


@pytest.mark.slow
@pytest.mark.fresh
def test_in_a_loop_without_an_optimizer_a_backward_pass_is_a_step(tmp_path: Path) -> None:
    result, report = as_alone(tmp_path, BY_HAND + "watching = None\nmain(150)\n")
    assert (report["steps"], report["leak"]["verdict"]) == (150, "leak")
    assert "local 'kept' of main" in report["leak"]["suspects"][0]["held_by"]
    assert "each backward pass counts as a step" in " ".join(result.report.split())
    added = "import forgather_mem\nwatching = forgather_mem.watch()\nmain(20)\n"
    (tmp_path / "script.py").write_text(
        BY_HAND.replace("loss.backward()", "loss.backward(retain_graph=True); loss.backward()") + added
    )
    assert "20 steps" in watched_forked(["script.py"], tmp_path).report
    (told,) = (one for one in map(read, tmp_path.glob("forgather_mem/*/report.json")) if one != report)
    assert (told["steps"], told.get("hints")) == (20, None)


@pytest.mark.fresh
def test_who_tells_of_steps_counts_also_after_many_passes(tmp_path: Path) -> None:
    by_optimizer = PLAIN.replace(
        "        optimizer.step()\n        optimizer.zero_grad()\n",
        "        if step % 20 == 19:\n            optimizer.step()\n            optimizer.zero_grad()\n",
    )
    name = "keras/src/callbacks/callback_list.py"
    by_keras = "from keras.src.callbacks.callback_list import CallbackList\n" + BY_HAND.replace(
        "watching and watching.step()", "step % 8 or CallbackList().on_train_batch_end()"
    )
    for num_steps, text in ((4, by_optimizer), (10, by_keras)):
        (tmp_path / str(num_steps) / name).parent.mkdir(parents=True)
        (tmp_path / str(num_steps) / name).write_text(FRAMEWORKS[name])
        _, report = as_alone(tmp_path / str(num_steps), text + "main(80)\n")
        assert (report["steps"], report.get("hints")) == (num_steps, None)


@pytest.mark.slow
@pytest.mark.fresh
def test_a_loop_that_tells_of_no_pass_is_told_what_to_add(tmp_path: Path) -> None:
    text = BY_HAND.replace("loss.backward()", "gradients = torch.autograd.grad(loss, list(model.parameters()))")
    text = text.replace("parameter in model.parameters()", "parameter, gradient in zip(model.parameters(), gradients)")
    result, report = as_alone(tmp_path, text.replace("parameter.grad", "gradient") + "watching = None\nmain(150)\n")
    assert (report["steps"], len(report["hints"])) == (0, 1)
    assert "No optimizer of torch was seen to step" in " ".join(result.report.split())


@pytest.mark.slow
@pytest.mark.fresh
def test_what_lightnings_trainer_does_is_heard(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "script.py").write_text(LIGHTNING)
    assert watched_forked(["script.py"], tmp_path).plain.code == 0
    report = report_in(tmp_path)
    assert (report["steps"], report["leak"]["verdict"]) == (189, "leak")
    assert report["leak"]["suspects"][0]["held_by"] == "Line.seen"
    (log,) = tmp_path.glob("forgather_mem/*/memory.rank0.jsonl")
    phases = {row["event"] for row in map(json.loads, log.read_text().splitlines()) if "event" in row}
    assert {"evaluate", "save"} <= phases


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize(("given", "keeps"), [("", "predictions"), ("return_predictions=False", "")])
def test_what_a_prediction_of_lightnings_keeps_is_told_of_a_killed_process(
    tmp_path: Path, given: str, keeps: str
) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "script.py").write_text("import os, lightning as L" + PREDICTS.format(given))
    assert watched_forked(["script.py"], tmp_path).plain.code == -signal.SIGKILL
    report = report_in(tmp_path)
    assert (report["killed"]["phase"], report["run"]["settings"].get("evaluate.keeps", "")) == ("evaluate", keeps)


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize(("calls", "of_each_batch"), [(2, False), (4, False), (2, True)])
def test_a_kill_in_compute_metrics_is_told_with_its_line(tmp_path: Path, calls: int, of_each_batch: bool) -> None:
    head = f"import sys\nsys.path.insert(0, {str(ROOT)!r})"
    (tmp_path / "script.py").write_text(head + COMPUTES.format(calls=calls, of_each_batch=of_each_batch))
    assert watched_forked(["script.py"], tmp_path).plain.code == -signal.SIGKILL
    report = report_in(tmp_path / "out")
    assert (report["killed"]["phase"], report["killed"].get("has_trained", False)) == ("evaluate", calls > 3)
    told = report["run"]["settings"].get("evaluate.in", "")
    assert told == "" if of_each_batch else told == "compute_metrics() at script.py:5", "of a batch nothing is joined"


@pytest.mark.fresh
def test_a_plain_loop_that_is_killed_is_told_of_with_its_last_step(tmp_path: Path) -> None:
    ends = "speaker.generate(torch.ones(1, 2, dtype=int), "
    ends += "return_dict_in_generate=True, output_scores=True, "
    ends += "logits_processor=[lambda *_: time.sleep(1.5) or os.kill(os.getpid(), 9)])"
    text = PLAIN.replace("kept.append(", f"step == 40 and (torch.save(1, io.BytesIO()), {ends}) or (")
    begin = "import io, os, time, transformers as hf\nspeaker = hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=8, n_head=1))\n"
    before = "speaker.generate(torch.ones(4, 2, dtype=int), max_new_tokens=1)\n"
    (tmp_path / "script.py").write_text(f"{begin}{text}{before}main(100)\n")
    assert watched_forked(["script.py"], tmp_path).plain.code == -signal.SIGKILL
    report = report_in(tmp_path)
    assert (report["killed"]["phase"], 40 < report["killed"]["step"] < 43) == ("generate", True)
    settings = report["run"]["settings"]
    assert (settings["generate.returns"], settings["save.into"]) == ("output_scores", "BytesIO")
    assert settings["generate.rows"] == "1", "of the one that ran, not of one before the loop"
    assert report["run"]["wall_s"] > report["killed"]["silent_s"] > 1.4, "up to its end, not its last record"


@pytest.mark.soak
@pytest.mark.fresh
def test_memory_that_runs_out_in_the_backward_pass_of_a_plain_loop(tmp_path: Path) -> None:
    text = PLAIN.replace("torch.randn(32, 64)", "torch.randn(32 if step < 40 else 300_000, 64)")
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (900 * 2**20,) * 2)\n"
    result, report = as_alone(tmp_path, limit + text.replace("kept.append", "len") + "main(50)\n")
    assert (report["run"]["end"], report["oom"]["step"]) == ("oom", 41)
    assert report["oom"]["phase"] in ("forward", "backward")
    assert "300,000" in result.report


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("end", ["pass", "torch.empty(2**50)"])
def test_a_script_that_calls_watch_is_watched_once_and_its_report_printed_once(tmp_path: Path, end: str) -> None:
    block = f"import forgather_mem\nwith forgather_mem.watch():\n    main(60)\n    {end}\n"
    (tmp_path / "script.py").write_text(PLAIN + block)
    _, _, alone = Forked(tmp_path / "script.py", [], tmp_path, environment()).wait()
    assert (alone.count(REPORT), alone.count("OUT OF MEMORY")) == (1, int(end != "pass"))
    result = taken_apart(run_forked([*RUN, "script.py"], tmp_path))
    assert (result.report.count(REPORT), result.plain.code) == (1, int(end != "pass"))
    assert len(list(tmp_path.glob("forgather_mem/*/report.json"))) == 2


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize(
    ("callback", "steps", "told"),
    [
        ("LeakDetector()", 160, "LEAK   tensors on the host grow 78"),
        ("SimpleGarbageCollector(1)", 30, " 30 steps in "),
        ("ProgressCallback()", 30, " 30 steps in "),
        ("ClearCacheCallback()", 30, " 30 steps in "),
        ("MemoryCallback()", 30, " 30 steps in "),
    ],
)
def test_a_loop_with_its_own_callback_is_in_the_report(tmp_path: Path, callback: str, steps: int, told: str) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("CALLBACK", callback).replace("STEPS", str(steps)))
    report = watched_forked(["own.py"], tmp_path).report
    assert told in report
    assert "No training step was seen" not in report
