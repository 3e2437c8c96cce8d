"""However a run ends, its report has the same facts: a new one has one place."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.reporting.run_dir import read_run
from forgather_mem.telemetry.report import Training
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import keys_of
from tests.forked import Forked

SCRIPT = """
import os, signal, sys
from types import SimpleNamespace
import torch
from forgather_mem import TrainingLoop
from forgather_mem.callbacks import MemoryCallback, TBMemoryLogger
from forgather_mem.sinks import jsonl

jsonl.ROLL_UP_RECORDS = int(sys.argv.pop())

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
args = SimpleNamespace(output_dir="out", gradient_accumulation_steps=2, process_index=0, world_size=3, optim="sgd")
loop = TrainingLoop(model, optimizer, args=args, callbacks=[MemoryCallback(), TBMemoryLogger(every_steps=1)])
with loop.train(), loop.epoch():
    for number in range(6):
        with loop.step():
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "interrupted":
        raise KeyboardInterrupt
    if sys.argv[1] == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
pytestmark = pytest.mark.alone(forked=True)
# What only the end tells, and what is of one process or one moment
OF_THE_END = {"end", "exit_code", "wall_s", "startup_s", "folder", "event_folder", "argv"}
OF_THE_HOST_AT_THE_END = {"allocated_end_bytes", "rss_end_bytes"}
BELOW_NOTICE = {"activations_bytes", "gaps_start_bytes"}  # of a tiny model the C library may have had them free
# Of a header what the report says elsewhere, or in other words
OF_THE_HEADER_ALONE = {
    "pid", "process", "started_s", "limit_bytes", "limit_kind", "step", "started_with", "kills", "process_started_s",
    "startup", "micro_batches", "is_observed", "counts_passes", "tick_s", "setup_s", "setup_bytes", "plan",
}  # fmt: skip


Reports = dict[str, dict[str, Any]]
CODES = {"finished": 0, "killed": -signal.SIGKILL, "interrupted": 1, "oom": 1}


def reported(folder: Path, how: str, roll_up_records: int = 4096) -> dict[str, Any]:
    folder.mkdir()
    (folder / "loop.py").write_text(SCRIPT)
    code, _, said = Forked(Path("loop.py"), [how, str(roll_up_records)], folder, os.environ).wait()
    assert code == CODES[how], said
    return read_run(folder)


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("same")
    return {how: reported(folder / how, how) for how in CODES}


def test_each_fact_of_a_header_is_a_key_of_the_reports_run() -> None:
    left = keys_of(RunHeader).keys() - keys_of(Training).keys()
    assert left == OF_THE_HEADER_ALONE, "a field of this name in `Training` of telemetry/report.py: it is taken by name"


@pytest.mark.parametrize("how", CODES)
def test_each_fact_of_the_run_is_in_its_report(how: str, each: Reports) -> None:
    finished, report = each["finished"], each[how]
    assert (report["run"]["end"], report["run"]["argv"]) == (how, [how])
    facts, found = (
        {name: one["run"].get(name) for name in finished["run"].keys() - OF_THE_END} for one in (finished, report)
    )
    assert found == facts
    assert facts["host"] == os.uname().nodename
    assert (facts["rank"], facts["world_size"]) == (0, 3)
    assert facts["settings"]["arguments.optim"] == "sgd"
    assert {"python", "torch", "forgather_mem"} <= facts["versions"].keys()
    for name in ("limit_bytes", "limit_kind"):
        assert finished["host"][name] == report["host"][name] != 0
    left_out = OF_THE_HOST_AT_THE_END | BELOW_NOTICE
    assert finished["host"].keys() - left_out == report["host"].keys() - left_out
    assert report["overhead"]["once_bytes"] > 2**16, "our modules were imported for it"
    assert finished["steps"] == report["steps"] == 6
    assert finished.keys() ^ report.keys() <= {"killed", "first_failure", "oom"}


def test_from_a_roll_up_on_a_killed_run_has_them_too(tmp_path: Path, each: Reports) -> None:
    killed = reported(tmp_path / "killed", "killed", 2)
    (log,) = (tmp_path / "killed").rglob("memory.rank0.jsonl")
    assert log.read_bytes().count(b'{"type":"roll-up"') > 1
    facts = [{name: one["run"][name] for name in one["run"].keys() - OF_THE_END} for one in (killed, each["killed"])]
    assert facts[0] == facts[1]
    assert killed["steps"] == each["killed"]["steps"]
    assert killed["host"].keys() ^ each["killed"]["host"].keys() <= BELOW_NOTICE


@pytest.mark.parametrize("name", ["folder", "event_folder"])
def test_each_names_its_own_places(name: str, each: Reports) -> None:
    places = [Path(one["run"][name]) for one in each.values()]
    assert all(place.is_absolute() and place.is_dir() for place in places)
    assert each.keys() <= {part for place in places for part in place.parts}


def test_what_the_header_has_is_in_the_log_and_in_the_black_box(tmp_path: Path, each: Reports) -> None:
    from forgather_mem.formats.ring import read_ring

    folder = Path(each["killed"]["run"]["folder"])
    with (folder / "memory.rank0.jsonl").open() as log:
        header = json.loads(log.readline())
    in_the_ring = read_ring(folder / "ring.rank0").header
    later = {"event_folder", "folder", "setup_s", "setup_bytes"}  # is known when the first record is written
    assert header.keys() - {"type", "schema"} - later == in_the_ring.keys() - later
    assert {name: header[name] for name in in_the_ring.keys() - later} == {
        name: value for name, value in in_the_ring.items() if name not in later
    }
