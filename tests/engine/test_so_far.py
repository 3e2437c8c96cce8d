"""A summary as plain values is the same summary when it is read back, and nothing else is one."""

import json
import random

import pytest

from forgather_mem.engine.so_far import plain_summary, read_summary
from forgather_mem.engine.summary import RunSummary
from forgather_mem.telemetry.records import FORETOLD, Finding, Sample
from forgather_mem.telemetry.report import LeakReport
from forgather_mem.telemetry.report_schema import to_dict
from tests.hostile_folders import VALUES, paths_in, with_value

NAMES = (
    "host/rss_bytes", "host/anon_bytes", "device1/allocated_bytes", "phase/host/forward_peak_bytes",
    "phase/device/backward_peak_bytes", "device/allocated_bytes", "workers/pss_bytes", "step/self_s", "mine/own",
)  # fmt: skip


def feed(summary: RunSummary, seed: int, steps: range) -> None:
    chance = random.Random(seed)
    for step in steps:
        values = {name: chance.random() * 2**30 for name in NAMES if chance.random() < 0.7}
        summary.add(Sample(chance.choice(("step_end", "step_end", "evaluate")), step, None, step / 2, values, 1))
        summary.add_step_cost(chance.random(), 1.0, 1)
        summary.self_s += chance.random()
    leak = LeakReport(verdict="leak", where="tensors", bytes_per_step=3.0)
    for kind, data in (("leak", to_dict(leak)), ("alert", {"what": FORETOLD}), ("settings", {"arguments.optim": "x"})):
        summary.tell(Finding(kind=kind, step=steps[-1], text="It will be full.", data=data))


def written(summary: RunSummary) -> object:
    return json.loads(json.dumps(plain_summary(summary), allow_nan=False))


@pytest.mark.parametrize("number", [0, 1, 30, 700, 2000])
def test_what_is_read_back_goes_on_as_the_summary_itself(number: int) -> None:
    summary = RunSummary()
    summary.begin(7, {"host/rss_bytes": 5.0})
    feed(summary, 1, range(8, 9 + number))
    again = read_summary(written(summary))
    assert "mine/own" not in again.latest, "of a user's own names a report tells nothing"
    for one in (summary, again):
        feed(one, 2, range(9 + number, 600 + number))
    assert plain_summary(again) == plain_summary(summary)
    assert "mine/own" in summary.latest


def test_no_value_that_is_something_else_is_believed() -> None:
    summary = RunSummary()
    summary.begin(7, {"host/rss_bytes": 5.0})
    feed(summary, 1, range(8, 60))
    whole = written(summary)
    num_refused = 0
    for path in paths_in(whole):
        if path[0] == "told" and len(path) > 1:  # a report, which is checked as any other
            continue
        for value in VALUES:
            read = read_summary(with_value(whole, path, value))
            if read is None:
                num_refused += 1
                continue
            feed(read, 2, range(60, 200))
            json.dumps(plain_summary(read), allow_nan=False)
    assert num_refused > 500


@pytest.mark.parametrize("value", [None, [], {}, "x", {"first_step": 1}])
def test_what_is_no_summary_is_none(value: object) -> None:
    assert read_summary(value) is None
