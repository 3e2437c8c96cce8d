"""What a report tells to those who plan its training again."""

from dataclasses import replace
from typing import Any

import pytest

from forgather_mem.diagnose.oom.context import FREE_HEAP
from forgather_mem.engine.summary import RunSummary
from forgather_mem.launch.failed_training import (
    FailedTraining,
    KillInPlan,
    explained_kill,
    failed_training,
    may_help_after,
    parsed_sizes,
)
from forgather_mem.reporting.build import build_report
from forgather_mem.reporting.problems import killed_lines
from forgather_mem.telemetry.report import Breakdown, Change, KilledReport, LeakReport, OomReport, RunReport
from forgather_mem.units import GIB, MIB

EMPTY = build_report(RunSummary())
SETTINGS = {"batch.rows": "8", "batch.length": "512", "batch.sizes": "input_ids=8x512"}
BATCH = Change(text="per_device_train_batch_size=4", set={"per_device_train_batch_size": 4})


LEAK = LeakReport(verdict="leak", where="host", bytes_per_step=40 * MIB)


def report_of(oom: OomReport | None = None, **facts: Any) -> RunReport:
    run = replace(EMPTY.run, settings={**SETTINGS, "arguments.per_device_train_batch_size": "8"})
    return replace(EMPTY, **{"run": run, "oom": oom, "advice": (BATCH,), **facts})


def out_of_memory(**facts: Any) -> OomReport:
    in_use = {"parameters": 100 * MIB, "activations": 500 * MIB, "reserved address space": 60 * MIB, "other": 240 * MIB}
    known = {"where": "host", "step": 3, "phase": "forward", "rank": 0, "requested_bytes": 80 * MIB,
             "free_bytes": 50 * MIB, "in_use": in_use, "batch": {"rows": 8, "length": 512}}  # fmt: skip
    return OomReport(**{**known, **facts})


def told(report: RunReport) -> FailedTraining:
    failed = failed_training(report, 1e9)
    assert isinstance(failed, FailedTraining), failed
    return failed


def test_what_is_no_tensor_of_the_training_is_beside_it() -> None:
    failed = told(report_of(out_of_memory()))
    assert (failed.taken_bytes, failed.beside_bytes, failed.limit_bytes) == (600 * MIB, 300 * MIB, 950 * MIB)
    in_heap = {"evaluation (`tensors` of add())": 500 * MIB, FREE_HEAP: 30 * MIB, "other": MIB}
    of_heap = told(report_of(out_of_memory(in_use=in_heap)))
    assert (of_heap.beside_bytes, of_heap.limit_bytes) == (MIB, 581 * MIB)
    assert (failed.phase, failed.is_first_step, failed.requested_bytes) == ("forward", False, 80 * MIB)
    assert (failed.rows, failed.length, failed.sizes) == (8, 512, "input_ids=8x512")


def test_what_a_pass_has_freed_on_its_way_out_may_have_been_as_much_as_was_asked_for() -> None:
    failed = told(report_of(out_of_memory(free_bytes=None)))
    assert (failed.taken_bytes, failed.unseen_bytes, failed.limit_bytes) == (600 * MIB, 80 * MIB, 980 * MIB)


def test_graphs_that_no_training_needs_go_with_the_remedies_that_are_about_them() -> None:
    in_use = {
        "activations": 100 * MIB,
        "graphs of 3 earlier passes in `total`": 60 * MIB,
        "graph of `teacher`": 7 * MIB,
        "graphs of earlier steps in `losses`": 5 * MIB,
        "other": MIB,
    }
    about = {"`total`": "detach", "`teacher`": "no_grad"}
    advice = [Change(text=f"without {name}", in_script={key: name}) for name, key in about.items()]
    failed = told(report_of(out_of_memory(in_use=in_use), advice=tuple(advice)))
    assert (failed.taken_bytes, failed.needless) == (167 * MIB, (("without `teacher`", ""),))
    assert failed.keeps_graphs, "so smaller batches are no remedy"
    assert not told(report_of(out_of_memory(in_use=in_use), advice=tuple(advice[1:]))).keeps_graphs


def test_what_is_kept_and_has_grown_is_planned_less_of_and_nothing_else_since_it_would_fail_later() -> None:
    in_use = {"parameters": 70 * MIB, "optimizer": 140 * MIB, "a copy of the model, `Soup.kept`": 350 * MIB}

    def answer(allocated_mib: int, held: str = "Soup.kept") -> object:
        advice = (Change(text="keep less", in_script={f"`{held}`": 2}),)
        host = replace(EMPTY.host, allocated_start_bytes=100 * MIB, allocated_end_bytes=allocated_mib * MIB)
        return told(report_of(out_of_memory(in_use=in_use), advice=advice, host=host)).grown

    assert answer(600) == ("`Soup.kept`", 350 * MIB, 4)
    in_use["graphs of earlier steps in `total`"] = 400 * MIB
    assert answer(700) == ("`Soup.kept`", 350 * MIB, 4)
    graphs = (Change(text="detach it", in_script={"detach": "`total`"}),)
    host = replace(EMPTY.host, allocated_start_bytes=100 * MIB, allocated_end_bytes=700 * MIB)
    failed = told(report_of(out_of_memory(in_use=in_use), advice=graphs, host=host))
    assert (failed.grown, failed.cure) == (("`total`", 400 * MIB, 0), "detach it")
    del in_use["graphs of earlier steps in `total`"]
    in_use["not looked into"] = 360 * MIB
    late = out_of_memory(in_use=in_use)
    assert failed_training(report_of(late, host=host), 1e9) == "what was not looked into has grown until then"
    steady = replace(host, allocated_end_bytes=300 * MIB)
    assert isinstance(told(report_of(late, host=steady)), FailedTraining)
    del in_use["not looked into"]
    assert told(report_of(out_of_memory(), advice=(Change(text="less", in_script={"`x`": 1}),))).cure == ""
    assert answer(300) == answer(600, "Soup.other") == ("", 0, 0), "it was there when the training began"
    assert isinstance(told(report_of(out_of_memory(), leak=LEAK, steps=1)), FailedTraining), "less than what is wanted"


def test_on_a_device_the_context_and_unused_memory_are_not_beside_it() -> None:
    in_use = {"activations": 2 * GIB, "other": GIB, "CUDA and libraries": GIB, "kept by the allocator": GIB}
    failed = told(report_of(out_of_memory(where="device", in_use=in_use, step=1)))
    assert (failed.taken_bytes, failed.beside_bytes) == (2 * GIB, GIB)
    assert failed.on_device
    assert failed.is_first_step


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (report_of(out_of_memory(phase="save")), "a plan has no save"),
        (report_of(out_of_memory(callback="Keeps.on_save")), "a plan has no callback"),
        (report_of(out_of_memory(callback="main()", phase="other")), "a plan has no code between steps"),
        (report_of(out_of_memory(), leak=LEAK, steps=3), "memory grows at each step"),
        (report_of(), "memory has not run out"),
        (report_of(killed=KilledReport(step=3, phase="forward", signal=15)), "memory has not run out"),
    ],
)
def test_what_can_not_be_planned_is_said(report: RunReport, why: str) -> None:
    assert failed_training(report, 1e9) == why


def test_of_a_killed_training_the_largest_batch_and_what_it_began_with_are_known() -> None:
    host = replace(EMPTY.host, limit_bytes=GIB, limit_kind="cgroup", rss_start_bytes=300 * MIB)
    killed = KilledReport(step=3, phase="backward", used_bytes=GIB, process_bytes=900 * MIB, **ENDED)
    failed = told(report_of(killed=killed, host=host, steps=3))
    assert (failed.phase, failed.taken_bytes, failed.requested_bytes) == ("backward", None, None)
    assert (failed.limit_bytes, failed.beside_bytes) == (GIB, 124 * MIB)
    assert (failed.rows, failed.length) == (8, 512)
    assert told(report_of(killed=replace(killed, phase="other"), host=host)).phase == "", "it has told of no step"
    grows = replace(killed, process_bytes_per_step=40.0 * MIB)
    assert failed_training(report_of(killed=grows, host=host, steps=30), 1e9) == "memory grows at each step"
    generating = report_of(killed=replace(killed, phase="generate"), host=host)
    generating.run.settings["generate.returns"] = "output_scores"
    assert may_help_after(generating)[0].text == "generate without output_scores"
    counted = replace(killed, oom_kill_after=0)
    assert failed_training(report_of(killed=counted, host=host), 1e9) == "memory has not run out"


ENDED = {"signal": 9, "oom_kill_before": 0, "oom_kill_after": 1}
IN_EVALUATION = KilledReport(step=3, phase="evaluate", has_trained=True, **ENDED)


def in_evaluation(is_trainers: bool = True, **settings: str) -> RunReport:
    report = report_of(killed=IN_EVALUATION, host=HOST, steps=3)
    known = {name: size for name, size in report.run.settings.items() if is_trainers or "arguments" not in name}
    return replace(report, run=replace(report.run, settings=known | settings))


def test_what_an_evaluation_keeps_and_what_runs_at_its_end_is_told_after_a_kill() -> None:
    asked = in_evaluation(**{"model.returned": "output_hidden_states"})
    why = "All predictions are kept until its end, and what is returned for output_hidden_states."
    assert explained_kill(asked, IN_EVALUATION, None).why_now == why
    assert may_help_after(asked)[0].text == "model.config.output_hidden_states = False"
    assert not any("logits" in one.text for one in may_help_after(in_evaluation(False))), "a loop has no such argument"
    computes = in_evaluation(**{"evaluate.in": "compute_metrics() at train.py:9"})
    assert explained_kill(computes, IN_EVALUATION, None).why_now == "compute_metrics() at train.py:9 was running."
    assert [one.text for one in may_help_after(computes)] == ["less at once in compute_metrics() at train.py:9"]
    trains = replace(computes, killed=replace(IN_EVALUATION, has_trained=False))
    assert failed_training(trains, 1e9) == "a plan has no compute_metrics() at train.py:9"
    of_lightning = may_help_after(in_evaluation(False, **{"evaluate.keeps": "predictions"}))
    assert of_lightning[0].text == "trainer.predict(..., return_predictions=False)"


def test_sizes_are_read_as_they_are_told() -> None:
    assert parsed_sizes("0=4x3x8x8 labels=4") == {"0": (4, 3, 8, 8), "labels": (4,)}
    assert parsed_sizes("") == {}


KILLED = KilledReport(step=1, phase="forward", signal=9, oom_kill_before=0, oom_kill_after=1, used_bytes=100 * MIB)
HOST = replace(EMPTY.host, limit_bytes=700 * MIB, limit_kind="cgroup", allocated_start_bytes=150 * MIB)
NEEDS = KillInPlan(
    phase="forward", num_bytes=540 * MIB, room_bytes=550 * MIB, parts={"activations": 500 * MIB, "batch": 40 * MIB},
    is_shown=True,
)  # fmt: skip


def text_of(report: RunReport, killed: KilledReport) -> str:
    return " ".join(" ".join(killed_lines(report, killed, 80)).split())


def test_what_does_not_fit_by_the_plan_is_why_it_was_killed() -> None:
    report = report_of(host=HOST)
    killed = explained_kill(report, KILLED, NEEDS)
    planned = "forward takes 540.0 MiB of tensors (planned: activations 500.0 MiB)"
    assert killed.why_now == f"{planned}; 550.0 MiB were left, with gaps between them."
    assert f"Why now: {killed.why_now}" in text_of(report, killed)
    assert explained_kill(report, replace(KILLED, step=0), NEEDS).why_now == f"in step 1 {killed.why_now}"
    of_line = explained_kill(report, KILLED, replace(NEEDS, line="train.py:9", line_bytes=412 * MIB)).why_now
    assert "(planned: activations 500.0 MiB, 412.0 MiB of all made at train.py:9)" in str(of_line)
    larger = explained_kill(report, replace(KILLED, why_now="the first."), replace(NEEDS, room_bytes=300 * MIB))
    assert (larger.in_use["batch"] // MIB, str(larger.why_now)[:18]) == (22, "the first. forward")
    kept = replace(NEEDS, room_bytes=300 * MIB, parts={"optimizer": 40 * MIB, "results": 500 * MIB})
    assert explained_kill(report, KILLED, kept).in_use["results"] == 260 * MIB, "the optimizer's state was there"
    later = replace(NEEDS, num_bytes=900 * MIB, parts={"optimizer": 600 * MIB, "`folds`": 300 * MIB})
    trained = report_of(host=HOST, steps=21, breakdown=Breakdown(optimizer=100 * MIB))
    assert explained_kill(trained, KILLED, later).in_use["optimizer"] == 100 * MIB, "the rest is of folds to come"
    first = {"optimizer": 400 * MIB, "parameters": 200 * MIB, "gradients": 200 * MIB}
    adam = explained_kill(report, KILLED, replace(NEEDS, phase="optimizer", num_bytes=800 * MIB, parts=first))
    assert {part: adam.in_use[part] for part in first} == {**first, "optimizer": 150 * MIB}


def test_what_was_read_before_the_kill_stands_in_place_of_what_the_plan_calls_the_same() -> None:
    """300 MiB were left for the training; a list of evaluated batches was read with 180 of them."""
    parts = {"optimizer": 20 * MIB, "temporaries": 800 * MIB, "batch": 200 * MIB}
    listed = replace(NEEDS, phase="evaluate", num_bytes=1020 * MIB, room_bytes=300 * MIB, parts=parts)
    killed = explained_kill(report_of(host=HOST), KILLED, replace(listed, held={"`outputs`": 180 * MIB}))
    told = {part: size // MIB for part, size in killed.in_use.items() if part in {"`outputs`", *parts}}
    assert told == {"`outputs`": 180, "optimizer": 20, "temporaries": 80, "batch": 20}
    assert sum(killed.in_use.values()) == HOST.limit_bytes
    most = {"optimizer": 20 * MIB, "most in `folds`": 560 * MIB}
    copies = replace(NEEDS, phase="optimizer", num_bytes=580 * MIB, room_bytes=540 * MIB, parts=most)
    killed = explained_kill(report_of(host=HOST), KILLED, replace(copies, held={"3 copies, `folds`": 500 * MIB}))
    assert {"3 copies, `folds`": 500 * MIB, "not in the plan": 20 * MIB}.items() <= killed.in_use.items()
    assert "560" not in str(killed.why_now)
    graphs = replace(NEEDS, phase="evaluate", num_bytes=900 * MIB, room_bytes=540 * MIB, parts={"kept": 900 * MIB})
    killed = explained_kill(report_of(host=HOST), KILLED, replace(graphs, held={"graphs in `loss`": 400 * MIB}))
    assert {"graphs in `loss`": 400 * MIB, "not in the plan": 140 * MIB}.items() <= killed.in_use.items()
    fits = replace(NEEDS, num_bytes=100 * MIB, room_bytes=550 * MIB, parts={"activations": 100 * MIB}, is_shown=False)
    killed = explained_kill(report_of(host=HOST), KILLED, replace(fits, held={"graphs in `loss`": 430 * MIB}))
    assert {"graphs in `loss`": 430 * MIB, "not in the plan": 20 * MIB}.items() <= killed.in_use.items()


def test_no_part_is_larger_than_it_was_read_and_none_is_there_that_comes_later() -> None:
    """A teacher's gradients and a second optimizer's state are in the plan of the step, not in the forward pass."""
    parts = {"activations": 500 * MIB, "gradients": 90 * MIB, "optimizer": 60 * MIB}
    report = report_of(host=HOST, steps=9, breakdown=Breakdown(parameters=MIB, gradients=2 * MIB, optimizer=4 * MIB))
    told = explained_kill(report, KILLED, replace(NEEDS, parts=parts)).in_use
    assert {part: told[part] // MIB for part in parts} == {"activations": 500, "gradients": 2, "optimizer": 4}
    back = explained_kill(report, replace(KILLED, phase="backward"), replace(NEEDS, phase="backward", parts=parts))
    assert (back.in_use["gradients"], back.in_use["activations"]) == (90 * MIB, 400 * MIB)


def test_what_was_there_when_it_was_read_last_has_not_come_in_a_generation() -> None:
    """A loop was met after its first pass, with 200 MiB of gaps; 450 of 700 MiB were there after its last step."""
    sizes = {"rss_start_bytes": 420 * MIB, "gaps_start_bytes": 200 * MIB, "rss_end_bytes": 490 * MIB}
    report = report_of(host=replace(HOST, **sizes), steps=6)
    killed = replace(KILLED, phase="generate", used_bytes=None, file_bytes=40 * MIB)
    told = {part: size // MIB for part, size in explained_kill(report, killed, None).in_use.items()}
    assert told == {"there before the first step": 180, "not looked into": 270, "generation": 250}


def test_what_fits_by_the_plan_was_killed_for_what_is_not_in_it() -> None:
    report = report_of(host=HOST, steps=6)
    parts = {"optimizer": 300 * MIB}
    fits = KillInPlan(phase="data", num_bytes=300 * MIB, room_bytes=450 * MIB, parts=parts, is_shown=False)
    killed = explained_kill(report, replace(KILLED, step=6, phase="other"), fits)
    assert killed.in_use == {
        "optimizer": 300 * MIB, "there before the first step": 150 * MIB, "other processes": 100 * MIB,
        "not in the plan": 150 * MIB,
    }  # fmt: skip
    assert "killed after step 6: in a callback, or in code between steps." in text_of(report, killed)


def test_without_a_plan_it_is_told_by_what_was_measured() -> None:
    """10 MiB more in each of 20 steps, of 600 MiB that others had left."""
    parts = Breakdown(parameters=50 * MIB, optimizer=100 * MIB, activations_peak=40 * MIB)
    report = report_of(host=HOST, steps=21, breakdown=parts)
    killed = explained_kill(report, replace(KILLED, process_bytes_per_step=10.0 * MIB, since_step=1), None)
    assert killed.in_use == {
        "parameters": 50 * MIB, "optimizer": 100 * MIB, "there before the first step": 100 * MIB,
        "grown step by step": 200 * MIB, "a step's own": 40 * MIB, "other": 110 * MIB, "other processes": 100 * MIB,
    }  # fmt: skip
    generating = explained_kill(report, replace(KILLED, phase="generate"), None).in_use
    assert (generating["generation"], "a step's own" in generating) == (350 * MIB, False)
    with_workers = replace(KILLED, workers_bytes=400 * MIB, num_workers=3)
    loading = explained_kill(report, with_workers, None)
    assert loading.in_use["data workers"] == 400 * MIB
    assert loading.why_now == "400.0 MiB are in data workers, pages that they share counted once."
    assert "dataloader_num_workers=0" in [one.text for one in may_help_after(replace(report, killed=with_workers))]
    assert killed.why_now == "It grows by 10.0 MiB a step."
    report.run.settings["save.into"] = "BytesIO"
    saving = replace(KILLED, phase="save", used_bytes=100 * MIB)
    assert failed_training(replace(report, killed=saving), 1e9) == "a plan has no save"
    saved = explained_kill(report, saving, None)
    assert (saved.in_use["saving"], "gradients" in saved.in_use) == (350 * MIB, False)
    assert saved.why_now == "torch.save writes into memory, a BytesIO."
    text = text_of(replace(report, advice=()), replace(killed, fit="not planned: interrupted"))
    assert "In use 700 MiB: grown step by step 200" in text
    assert "NO REMEDY KNOWN (not planned: interrupted)" in text
    assert explained_kill(replace(report, steps=0), KILLED, None).in_use == {}, "nothing of it was measured"
