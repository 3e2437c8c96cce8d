"""How benchmarks/peers judges what tools say, by outputs that were captured."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PEERS = Path(__file__).parent.parent / "benchmarks" / "peers"

OURS = """\
== forgather-mem == flight_log.py == 400 steps in 11.6 s, exit 0 ===============
LEAK   tensors on the host grow 55.8 KiB a step (54.2 to 56.6), since step 1,
       full near step 364,710 at its last pace. Confidence: high.

  held by   Recorder.buffer           list, +3 items a step, 1,200 items, 20.5
            MiB
  made at   flight_log.py:58
            log.debug("step %d starts", self.state.global_step)
"""
OBJGRAPH = """\
growth at step 250: {'LogRecord': 150, 'Tensor': 100, 'tuple': 50}
grew at each of the last 3 looks: LogRecord, Tensor, tuple
chain __main__ -> dict[log] -> Logger[handlers] -> list -> Recorder[buffer] -> list -> LogRecord
"""
MEMRAY = "leaks of the script: flight_log.py:49 18.82 MiB\nleaks of the script: flight_log.py:73 1.04 MiB\n"
TRACEML = """\
|  Verdict: INSUFFICIENT STEP-TIME DATA                                                                   |
|                                                               ||  STEP MEMORY: NO DATA                  |
"""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/peers/judge.py as a module."""
    monkeypatch.syspath_prepend(str(PEERS))
    yield importlib.import_module("judge")
    for name in ("inside", "judge", "page", "running", "tools"):
        sys.modules.pop(name, None)


def test_a_leak_is_told_by_a_sentence_and_not_by_a_list(judge: ModuleType) -> None:
    told = {text: judge.says_leak(text) for text in (OURS, OBJGRAPH, MEMRAY, TRACEML)}
    assert told == {OURS: True, OBJGRAPH: True, MEMRAY: False, TRACEML: False}
    assert judge.says_leak("|  STEP MEMORY: MEMORY CREEP CONFIRMED")
    assert not judge.says_leak("No leak in 300 steps.\n  a leak would have to grow")


def test_a_leak_is_named_by_its_holder_or_a_line_that_makes_it(judge: ModuleType) -> None:
    task = next(task for task in judge.TASKS if task.script == "flight_log")
    named = {text: judge.names_it(task, text) for text in (OURS, OBJGRAPH, MEMRAY, TRACEML)}
    assert named == {OURS: True, OBJGRAPH: True, MEMRAY: True, TRACEML: False}
    assert not judge.names_it(task, "leaks of the script: flight_log.py:73 1.04 MiB")


def test_each_task_is_a_script_with_facts(judge: ModuleType) -> None:
    assert all(task.path.is_file() for task in judge.TASKS)
    assert all(task.script in judge.FACTS for task in judge.TASKS if task.kind != "innocent")


def test_the_tables_say_what_was_not_run_and_where_others_are_better(judge: ModuleType) -> None:
    page = importlib.import_module("page")
    run = importlib.import_module("running").Ran

    def ran(findings: str, mib: int = 0, **steps: float) -> object:
        return run(exit_code=0, wall_s=1.0, peak_bytes=mib * 2**20, output="", findings=findings, steps=steps)

    leaks = {"forgather-mem": {"flight_log": ran("")}, "memray": {"flight_log": ran(MEMRAY), "bank": ran("")}}
    rows = page.leaks(leaks)
    assert rows[2].startswith("| forgather-mem | silent, does not name it | not run |")
    assert rows[3].endswith("| no verdict, names it | not run | not run | no verdict |")
    costs = {
        "alone": [ran("", 300, wall_median_ms=10, cpu_median_ms=10, cpu_mean_ms=10)],
        "forgather-mem": [ran("", 320, wall_median_ms=12, cpu_median_ms=12, cpu_mean_ms=11)],
        "memray": [ran("", 310, wall_median_ms=20, cpu_median_ms=20, cpu_mean_ms=30)],
    }
    assert page.where_others_are_better(leaks, costs) == (
        "Where others are better: memray names `flight_log`, which we don't; memray takes less memory."
    )
    assert page.costs(costs)[3] == "| forgather-mem | 1 | 12.0 | 1.20 | 1.20 | 1.10 | +20 |"


def test_the_page_shows_figures_of_the_result() -> None:
    page = (PEERS.parent.parent / "docs" / "peers.md").read_text(encoding="utf-8")
    result = (PEERS.parent / "results" / "peers.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 5
    assert [row for row in rows if row not in result] == []
    assert page.count("\n") <= 25
