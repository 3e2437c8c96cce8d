"""Probes and sinks of a user that return what nobody expects, and a program that closes every descriptor."""

import json
from fractions import Fraction

import pytest
import torch

from forgather_mem import Every, Rule, attach
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.telemetry.guard import FailureGuard
from tests.programs import printed_by
from tests.training import make_trainer

NO_NUMBERS = ["text", 10**400, torch.ones(3), Fraction(10**400), 1j, [1], object(), torch.ones(2, device="meta"), None]


@pytest.mark.filterwarnings("ignore")
def test_whatever_a_probe_returns_the_training_has_its_report(tmp_path):
    values = [*NO_NUMBERS, float("nan"), float("inf")]
    rules = [
        Rule(Every(steps=1), [lambda moment, sample, value=value: {"host/rss_bytes": value, "mine": value}])
        for value in values
    ]
    odd_names = Rule(Every(steps=1), [lambda moment, sample: {3: 1.0, None: 2.0}])
    trainer = make_trainer(tmp_path, [MemoryCallback([*rules, odd_names], [])], max_steps=4)
    watching = attach(trainer)
    trainer.train()
    report = watching.report()
    assert report["steps"] == 4
    assert report["host"]["rss_end_bytes"] > 0
    assert "forgather-mem" in str(report)
    json.dumps(report, allow_nan=False)


class OddSink:
    def __init__(self, value):
        self.value = value

    def write(self, sample):
        pass

    def log_values(self, step):
        return self.value

    def problems(self):
        return self.value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_whatever_a_sink_adds_to_a_log_line_a_checkpoint_can_be_saved(tmp_path):
    odd = [{1: 1}, {"a": object()}, {"b": torch.ones(2)}, {"c": {1}}, {"d": 10**5000}, [("e", 1)], "f"]
    watching = MemoryCallback([], [*map(OddSink, odd), OddSink({"mine": 5})])
    trainer = make_trainer(tmp_path, [watching], max_steps=2, save_strategy="steps", save_steps=2, logging_steps=1)
    handle = attach(trainer)
    trainer.train()
    (state,) = tmp_path.rglob("trainer_state.json")
    logged = json.loads(state.read_text())["log_history"]
    assert [line.get("mine") for line in logged] == [5, 5]
    assert not {"a", "b", "c", "d", "e"}.intersection(*logged)
    report = handle.report()
    assert "{'mine': 5}" in report["switched_off"]  # what it gave as its problem
    assert "forgather-mem" in str(report)


def test_an_error_without_a_text_stays_in_the_guard():
    class Unspeakable(Exception):
        def __str__(self):
            raise ValueError

        __repr__ = __str__

    guard = FailureGuard()
    assert guard.keeps("a part", Unspeakable())
    assert guard.failure == "Unspeakable (ValueError in its text)"


CLOSES_ALL = """
import os, sys
from pathlib import Path
from forgather_mem.formats.append import AppendFile
from forgather_mem.formats.json_array import JsonArrayFile
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.system.procfs import KernelFile

folder = Path(sys.argv[1])
ring, array = RingWriter(folder / "ring", {}), JsonArrayFile(folder / "array.json")
lines = AppendFile(lambda: (folder / "lines", b"first\\n"), always_new=False)
kernel = KernelFile("/proc/self/oom_score_adj", write=True)


def write():
    ring.sample(1, {})
    ring.phase("forward")
    array.append({"a": 1})
    if lines.ready():
        lines.append(b"a line\\n")
    try:
        kernel.write(b"0")
    except OSError as error:
        return error


assert write() is None
os.closerange(3, 512)
os.closerange(512, 1024) if "all" in sys.argv else None
mine = [os.open(folder / f"mine{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
for _ in range(3):
    write()
for part in (ring, lines):
    part.close()
print(*(os.fstat(file).st_size for file in mine))
"""


@pytest.mark.parametrize("closed", ["some", "all"])
def test_a_program_that_closes_every_descriptor_gets_nothing_of_ours_into_its_files(tmp_path, closed):
    assert printed_by(CLOSES_ALL, tmp_path, closed).split() == ["0"] * 20
