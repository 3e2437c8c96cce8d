"""The texts that were promised, and what holds for all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.reporting.text import MAX_LINES, report_command
from tests.reporting.report_fixtures import all_well, killed, killed_by, leaking, out_of_memory, report_of, text_of

ALL_WELL = """\
== forgather-mem == train.py == 2,000 steps, 31 min, exit 0 ====================
No leak (under 4.0 KiB a step over 2,000 steps). Peak GPU 0 41.3 of 79.6 GiB at
step 1,998, backward; host 8.8 of 64.0 GiB (container) at step 500, save. Room:
batch 15 would still fit (now 8), limited by the backward pass. Own cost 0.3 %.
forgather-mem report out/forgather_mem | tensorboard --logdir out
================================================================================"""
A_LEAK = """\
== forgather-mem == train.py == 2,000 steps, 31 min, exit 0 ====================
LEAK   GPU 0 grows 3.1 MiB a step (3.0 to 3.2), since step 60. Confidence: high.

  held by   Trainer.kept_logits       list, +1 item a step, 1,940 items, 5.9 GiB
  made at   train.py:41
            self.kept_logits.append(outputs.logits.detach())
  each is   Tensor [8, 128, 800] float32 on cuda:0, 3.1 MiB
  try       keep less, and off the GPU: outputs.logits.argmax(-1).cpu()

MEMORY, GiB      start   end  peak  at                     limit
  GPU 0 used       9.1  15.0  41.3  step 1,998, backward    79.6
  GPU 0 reserved   9.4  52.0  52.0
  host             6.2   6.3   8.8  step 500, save          64.0 container
CLEAN-UP  gc.collect() at train.py:77: 400 calls, 1 min 11 s (3.8 % of the run),
          freed nothing. Remove it.
OWN COST  0.3 % of the run

forgather-mem report out/forgather_mem       all numbers; --json
tensorboard --logdir out                     tags mem_*
================================================================================"""

OUT_OF_MEMORY = """\
== forgather-mem == train.py == out of memory after 1,203 steps, 19 min ========
OUT OF MEMORY   GPU 0, step 1,204, forward, in model.lm_head
  Wanted 3.91 GiB, free 1.2 GiB of 79.6 GiB.
  Why now: the longest batch so far, 8 x 4,096 tokens; until then at most 8 x
           2,310, peak 60.5 GiB.
  Not a leak (flat since step 20). Not fragmentation (0.3 GiB unusable).
  In use 78.4 GiB: activations 46.2, optimizer 15.0, parameters 7.5, gradients
                   7.5, CUDA and libraries 1.9, other 0.3
WOULD HAVE FIT  (line fitted to 1,203 steps, 37 batch shapes; keeps 2 % free)
  1  per_device_train_batch_size=4, gradient_accumulation_steps=2   about 57 GiB
  2  max length 3,700 at batch 8                                    about 78 GiB
  3  gradient_checkpointing=True         fewer activations, slower; not measured
  No help here: empty_cache, expandable_segments (nothing to give back).
================================================================================"""

KILLED = """\
== forgather-mem == train.py == killed (SIGKILL) after 7,310 steps, 2 h 04 min =
KILLED BY THE KERNEL: the container's memory limit, 64.0 GiB, was reached
  (oom_kill 0 -> 1). Last sign of life: step 7,310, evaluate.
  At the end 63.6 GiB: this process 21.4, 8 data workers 42.2 (counted once).
  Growth: workers 5.9 MiB a step since step 1; this process flat.
  Cause (likely): workers copy the pages of a Python list that they only read:
    Samples.rows, 4.1 million objects, data.py:23.
  Try: rows as one array or Arrow table; until then num_workers=4 (-21 GiB).
================================================================================"""

TEXTS = [(all_well, ALL_WELL), (leaking, A_LEAK), (out_of_memory, OUT_OF_MEMORY), (killed, KILLED)]
Make = Callable[[], dict[str, Any]]


@pytest.mark.parametrize(("make", "text"), TEXTS, ids=["all well", "a leak", "out of memory", "killed"])
def test_each_ending_reads_as_promised(make: Make, text: str) -> None:
    assert text_of(make()) == text


@pytest.mark.parametrize("make", [make for make, _ in TEXTS])
def test_every_text_stays_within_its_lines_and_columns_whatever_the_names(make: Make) -> None:
    report = lengthened(make())
    lines = text_of(report).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("make", [make for make, _ in TEXTS])
def test_the_end_of_every_text_names_the_folder_however_much_there_is_to_tell(make: Make) -> None:
    report = make()
    report["run"].update(folder="out/forgather_mem", event_folder=None)
    for told in (report, lengthened(report)):
        lines = text_of(told).splitlines()
        assert lines[-2].startswith("forgather-mem report out/forgather_mem")
        assert len(lines) <= MAX_LINES


@pytest.mark.parametrize(("silent_s", "told"), [(20.3, "evaluate, 20.3 s before the end."), (4.9, "evaluate.")])
def test_a_last_sign_of_life_long_before_the_end_is_told_as_such(silent_s: float, told: str) -> None:
    report = killed()
    report["killed"]["silent_s"] = silent_s
    assert f"Last sign of life: step 7,310, {told}" in " ".join(text_of(report).split())


@pytest.mark.parametrize(("make", "text"), TEXTS)
def test_colour_changes_no_word(make: Make, text: str) -> None:
    coloured = text_of(make(), color=True)
    assert "\x1b[1m" in coloured or make is all_well
    assert coloured.replace("\x1b[1m", "").replace("\x1b[0m", "") == text


def test_a_script_that_does_not_train_has_no_steps_to_speak_of() -> None:
    report = killed_by(report_of("embed.py", 0, 3.0, None), signal=11)
    text = text_of(report)
    assert text.startswith("== forgather-mem == embed.py == killed (SIGSEGV) after 3.0 s ==")
    assert "ENDED BY SIGSEGV.\n" in text
    assert "step" not in text


def test_a_script_that_exits_in_the_middle_shows_its_code() -> None:
    text = text_of(report_of("train.py", 4, 3.0, "interrupted", run={"exit_code": 3}))
    assert text.startswith("== forgather-mem == train.py == interrupted after 4 steps, 3.0 s, exit 3 ==")
    text = text_of(report_of("train.py", 4, 3.0, "interrupted", run={"exit_code": 130}))
    assert text.startswith("== forgather-mem == train.py == interrupted after 4 steps, 3.0 s ==")


def test_room_is_spoken_of_only_when_the_advice_does() -> None:
    report = all_well()
    report["advice"] = []
    assert "Room" not in text_of(report)


def test_when_the_memory_will_be_full_and_how_sure_that_is() -> None:
    report = leaking()
    report["leak"].update(full_at_step=14600, sure="not yet", bytes_per_step_low=0.0, bytes_per_step_high=0.0)
    text = " ".join(text_of(report).split())
    assert "LEAK GPU 0 grows 3.1 MiB a step, since step 60, full near step 14,600. Confidence: not yet" in text
    assert "not yet (only 2,000 steps seen)." in text


def lengthened(report: dict[str, Any]) -> dict[str, Any]:
    """The same with long names and control characters in every text that comes from a user's files."""
    long = copy.deepcopy(report)
    tail = "\x1b[31m\n" + "name " * 30 + "x" * 200

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("where", "end", "phase", "what", "whose", "limit_kind", "verdict", "sure", "folder", "event_folder")
            return {key: inner if key in kept else change(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [change(inner) for inner in value]
        return value + tail if isinstance(value, str) else value

    changed: dict[str, Any] = change(long)
    return changed


@pytest.mark.parametrize(("end", "signal"), [("interrupted", 2), ("killed", 15), ("killed", 9)])
def test_the_room_of_a_run_that_somebody_ended_is_room_and_no_advice(end: str, signal: int) -> None:
    room = {"text": "batch 16 would still fit (now 8)", "set": {"per_device_train_batch_size": 16}}
    ended = {**killed()["killed"], "signal": signal, "oom_kill_after": 0, "workers_bytes_per_step": 0.0}
    report = report_of("train.py", 300, 20.0, end, killed=ended, advice=[{**room, "predicted_bytes": None}])
    text = text_of(report)
    assert "Try:" not in text
    assert [line.split() for line in text.splitlines() if "16" in line] == [
        ["ROOM", "batch", "16", "would", "still", "fit", "(now", "8)."]
    ]
    by_the_kernel = {**ended, "oom_kill_after": 1}
    assert "batch 16" not in text_of({**report, "killed": by_the_kernel}), "memory was full"


def test_the_command_for_a_report_works_in_the_shell_that_started_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    monkeypatch.chdir(tmp_path / "work")
    run = tmp_path / "work/forgather_mem/1 a"
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert report_command(str(run)) == "forgather-mem report 'forgather_mem/1 a'"
    assert report_command(str(tmp_path / "out")) == f"forgather-mem report {tmp_path}/out"
    monkeypatch.setenv("PWD", str(tmp_path))
    assert report_command(str(run)) == f"forgather-mem report '{run}'"
    monkeypatch.delenv("PWD")
    assert report_command(str(run)) == "forgather-mem report 'forgather_mem/1 a'"
