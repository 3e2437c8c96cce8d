"""What went wrong, as the first lines of a report."""

from typing import Any

import pytest

from tests.reporting.report_fixtures import all_well, gib, killed, killed_by, leaking, out_of_memory, report_of, text_of


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"oom_kill_after": 0}, "KILLED BY SIGKILL, but not for memory: the kernel counted no out-of-memory kill"),
        ({"oom_kill_after": None}, "KILLED BY SIGKILL, most likely by the kernel: the container's memory limit"),
        ({"oom_kill_after": None, "used_bytes": gib(20)}, "KILLED BY SIGKILL; the sender is not known."),
        ({"signal": 11, "oom_kill_after": 0}, "ENDED BY SIGSEGV, signal 11 (segmentation fault). With PYTHON"),
        ({"signal": 2, "oom_kill_after": 0, "phase": "other"}, "INTERRUPTED (Ctrl-C) after 7,310 whole steps. LEAK"),
        ({"signal": None, "oom_kill_after": 0}, "ENDED UNEXPECTEDLY: killed, crashed"),
        ({"signal": None}, "MOST LIKELY KILLED BY THE KERNEL for memory (oom_kill 0 -> 1)"),
    ],
)
def test_a_kill_is_laid_at_the_kernels_door_only_as_far_as_its_counter_says(change: dict[str, Any], first: str) -> None:
    report = killed()
    report["killed"].update(change)
    lines = text_of(report).splitlines()
    assert first in " ".join(line.strip() for line in lines[1:4])
    assert ("SIG" in lines[0]) == (report["killed"]["signal"] is not None)


def test_a_parent_adds_the_signal_that_the_run_could_not_write() -> None:
    report = killed_by(report_of("train.py", 12, 3.0, None), signal=9)
    assert (report["run"]["end"], report["run"]["exit_code"], report["killed"]["signal"]) == ("killed", 137, 9)
    text = text_of(report)
    assert text.startswith("== forgather-mem == train.py == killed (SIGKILL) after 12 steps in 3.0 s ==")
    assert "Last sign of life: step 12. No verdict on leaks before about 80 steps." in " ".join(text.split())
    text = text_of(killed_by(report_of("train.py", 1200, 3.0, None), signal=9))
    assert "No verdict on leaks: the process ended before one was made." in " ".join(text.split())


@pytest.mark.parametrize(("kind", "where"), [("cgroup", "in the whole container"), ("host", "on the whole machine")])
def test_what_others_use_under_the_same_limit_is_not_taken_for_the_runs(kind: str, where: str) -> None:
    report = killed()
    report["host"]["limit_kind"] = kind
    assert where not in text_of(report)
    report["killed"].update(workers_bytes=None, num_workers=None)
    text = " ".join(text_of(report).split())
    assert f"At the end 63.6 GiB {where}: this process 21.4." in text


def test_of_more_than_the_limit_it_is_told_what_of_it_may_not_count() -> None:
    for process_gib, told in ((20, False), (24, True)):
        report = killed()
        report["killed"] |= {"process_bytes": gib(process_gib), "file_bytes": gib(3)}
        part = "this process 24.0 (3.0 of it in pages of files, which the limit may not count), 8 data workers"
        assert (part in " ".join(text_of(report).split())) is told


def test_growth_is_not_claimed_where_nothing_grew() -> None:
    report = killed()
    report["killed"]["workers_bytes_per_step"] = 0.0
    text = text_of(report)
    assert "No growth from step to step (workers and this process flat)" in text
    assert "a step since" not in text


def test_what_another_signal_has_ended_has_a_leak_and_no_cause() -> None:
    report = killed()
    assert "  Cause (likely): " in text_of(report)
    report["killed"].update(signal=15, oom_kill_after=report["killed"]["oom_kill_before"])
    text = text_of(report)
    assert "\nLEAK   the data workers grow " in text
    assert "\nMEMORY, GiB" in text, "all tables, as of a run that has ended by itself"
    assert "Cause" not in text


def test_what_a_killed_run_had_gained_since_the_last_look_is_told_as_an_estimate() -> None:
    report = leaking()
    assert "step, 1,940 items, 5.9 GiB" in text_of(report)
    report["run"]["end"] = "killed"
    assert "step, about 1,940 items, 5.9 GiB" in " ".join(text_of(report).split())


def test_workers_that_grow_without_a_leak_get_a_cause_and_a_cure() -> None:
    report = killed()
    report["leak"] = {"verdict": "no leak", "suspects": []}
    text = " ".join(text_of(report).split())
    assert "Cause: the workers keep what they load, or touch Python objects" in text
    assert "Try: rows as one array or Arrow table" in text


def test_a_leak_in_a_library_says_that_it_is_not_the_users() -> None:
    report = leaking()
    report["leak"]["suspects"][0].update(whose="library", allocated_at="trl/trainer/grpo_trainer.py:88")
    report["leak"]["suspects"] *= 3
    text = text_of(report)
    assert "made at   trl/trainer/grpo_trainer.py:88 (library code, not yours)" in text
    assert "  also      Trainer.kept_logits, 3.1 MiB a step, trl/trainer/grpo_trainer.py:88" in text


def test_the_peak_comes_first_and_then_how_many_steps_a_verdict_takes() -> None:
    report = all_well()
    report["leak"] = {"verdict": "not enough data", "judged": True}
    said = text_of(report).splitlines()[1]
    assert said.startswith("Peak GPU 0 41.3 of 79.6 GiB at step 1,998, backward; host 8.8 of 64.0 GiB")
    assert "No verdict on leaks: of 2,000 steps too few were read" in " ".join(text_of(report).split())
    report["steps"] = 30
    assert "No verdict on leaks before about 80 steps." in " ".join(text_of(report).split())


@pytest.mark.parametrize(
    ("undecided", "why"),
    [
        ("unexplained", "12.0 MiB grew that we can't attribute, in 300 steps: 12.0 MiB in /dev/shm"),
        ("slowing", "grows, slowing down: host memory 80.0 KiB a step in the first third, 40.0 KiB in the last"),
    ],
)
def test_growth_that_is_no_verdict_is_not_called_too_early(undecided: str, why: str) -> None:
    report = all_well()
    report["leak"] = {"verdict": "not enough data", "judged": True, "undecided": undecided, "why": why}
    text = " ".join(text_of(report).split())
    assert f"{why[0].upper()}{why[1:]}." in text
    assert "No verdict" not in text
    assert "No leak" not in text


@pytest.mark.parametrize("verdict", ["no leak", "not enough data"])
def test_what_was_said_while_it_ran_is_taken_back_by_name(verdict: str) -> None:
    report = all_well()
    said = "host memory grows 62.9 KiB a step (step 96): it has hardly grown since step 116"
    report["leak"] |= {"verdict": verdict, "judged": True, "taken_back": [said]}
    assert f"Taken back: {said}." in " ".join(text_of(report).split())


@pytest.mark.parametrize(("kind", "limit"), [("host", ", 64.0 GiB,"), ("RLIMIT_DATA", "")])
def test_the_machines_memory_is_not_called_a_containers_limit(kind: str, limit: str) -> None:
    report = killed()
    report["host"]["limit_kind"] = kind
    assert f"the machine's memory{limit} was reached" in text_of(report)


def test_what_nobody_has_planned_does_not_stand_under_what_would_have_fit() -> None:
    report = out_of_memory()
    report["advice"] = [dict(change, predicted_bytes=None) for change in report["advice"]]
    report["oom"] |= {"fit": "not planned: no time", "limit": "GPU 1"}  # not the device that held most
    text = text_of(report)
    assert "OUT OF MEMORY   GPU 1, step" in text
    assert "WOULD HAVE FIT" not in text
    assert "MAY HELP  (not planned: no time)\n  1  per_device_train_batch_size=4" in text
    report["advice"][1]["predicted_bytes"] = gib(78)
    headings = [line.split("  ")[0] for line in text_of(report).splitlines() if line.startswith(("WOULD", "MAY"))]
    assert headings == ["WOULD HAVE FIT", "MAY HELP"]


def test_where_nobody_has_planned_the_report_names_the_command_that_does() -> None:
    report = out_of_memory()
    assert "forgather-mem plan" not in text_of(report)
    report["oom"]["fit"] = None
    assert "forgather-mem plan --card 79.6GiB train.py" in " ".join(text_of(report).split())
    for settings, of in ({"trainer.compute_metrics": "False"}, "your trainer"), ({}, "a one-step function"):
        report["run"] |= {"script": "/usr/lib/ipykernel_launcher.py", "settings": settings}
        assert f"What would fit: forgather_mem.plan(...) of {of}, in a cell" in text_of(report)


def test_of_a_killed_run_what_would_have_fitted_is_told_in_place_of_a_try() -> None:
    report = killed()
    report["advice"] = [{"text": "per_device_train_batch_size=4", "set": {}, "predicted_bytes": gib(40)}]
    text = text_of(report)
    assert "per_device" not in text.partition("WOULD HAVE FIT")[0]
    assert "peak 40.0 GiB, leaves 24.0 GiB" in text


def test_where_nothing_that_was_planned_would_have_fitted_that_is_told() -> None:
    report = out_of_memory()
    report["oom"]["fit"] = "planned"
    report["advice"] = [dict(change, predicted_bytes=None) for change in report["advice"]]
    assert "\nMAY HELP  (nothing that was planned is sure to fit)\n" in text_of(report)
    report["advice"], report["oom"]["fit"] = [], "planned, 60 s were not enough for all"
    assert "NO REMEDY KNOWN  (nothing that was planned is sure to fit, 60 s were" in text_of(report)
