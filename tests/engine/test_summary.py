"""The running totals of a training, from records that are given; what a report makes of them is in `reporting`."""

import pytest
from torch._utils import ExceptionWrapper

from forgather_mem.engine.summary import MAX_FINDINGS, RunFacts, RunSummary
from forgather_mem.telemetry.records import Finding
from forgather_mem.telemetry.report import Change, LeakReport, OomReport
from forgather_mem.telemetry.report_schema import to_dict
from tests.sinks.written import sample


def test_steps_are_counted_from_where_the_run_began() -> None:
    summary = RunSummary()
    assert summary.steps == 0
    summary.begin(40, {"host/rss_bytes": 1.0})
    for step in (41, 43, 43):
        summary.add(sample(step, host__rss_bytes=1.0, device=2))
    assert (summary.steps, summary.last_step, summary.device) == (3, 43, 2)
    late = RunSummary()  # read back from a log that has lost its beginning
    late.add(sample(41, host__rss_bytes=1.0))
    assert late.steps == 1


def test_the_rise_of_a_phase_is_above_what_the_step_has_kept() -> None:
    summary = RunSummary()
    for step, (rss, peak) in enumerate([(10.0, 15.0), (20.0, 40.0), (30.0, 45.0)], 1):
        summary.add(sample(step, host__rss_bytes=rss, phase__host__forward_peak_bytes=peak))
    assert summary.rises == {"phase/host/forward_peak_bytes": 20.0}


def test_the_least_anonymous_memory_is_that_at_the_end_of_a_step() -> None:
    summary = RunSummary()
    assert summary.least_anon_bytes is None
    summary.add(sample(1, host__anon_bytes=9.0))
    summary.add(sample(1, "save", host__anon_bytes=2.0))
    summary.add(sample(2, host__anon_bytes=7.0))
    assert summary.least_anon_bytes == 7.0


LEAK = LeakReport(verdict="leak", where="tensors", bytes_per_step=5.0, judged=True)
OOM = OomReport(where="host", step=3, phase="forward", rank=0)


def test_a_finding_becomes_its_part_of_the_report_and_others_are_kept() -> None:
    summary = RunSummary()
    summary.tell(Finding(kind="leak", step=3, text="", data=to_dict(LEAK)))
    summary.tell(Finding(kind="oom", step=3, text="", data=to_dict(OOM)))
    summary.tell(Finding(kind="advice", step=3, text="", data={"advice": [to_dict(Change(text="less"))]}))
    assert (summary.told.leak, summary.told.oom) == (LEAK, OOM)
    assert [change.text for change in summary.told.advice] == ["less"]
    assert summary.oom == to_dict(OOM)
    assert summary.findings == []
    summary.tell(Finding(kind="vanishing", step=5, text="gradients vanish", data={"what": "b", "layers": [1] * 10_000}))
    (kept,) = summary.findings
    assert (kept.text, kept.data) == ("gradients vanish", {"what": "b"}), "a few hundred bytes, however long the run is"


def test_a_part_that_is_not_as_it_should_be_is_not_believed() -> None:
    summary = RunSummary()
    for kind in ("leak", "oom", "advice", "cleanup_calls"):
        summary.tell(Finding(kind=kind, step=3, text=kind, data={"verdict": "perhaps", "advice": 3, "calls": "all"}))
    assert (summary.told.oom, summary.told.advice, summary.told.leak.verdict) == (None, (), "not enough data")
    assert len(summary.findings) == 4


def test_a_run_that_finds_something_at_each_step_stays_small() -> None:
    summary = RunSummary()
    for step in range(2 * MAX_FINDINGS):
        summary.tell(Finding(kind="mine", step=step, text="again"))
    assert [finding.step for finding in summary.findings] == list(range(MAX_FINDINGS))


def test_a_run_keeps_the_first_line_of_its_error() -> None:
    facts = RunFacts()
    facts.failed_by(ValueError("no such row\n  in table 3"))
    assert facts.error == "ValueError: no such row"
    facts.failed_by(MemoryError())
    assert facts.error == "MemoryError"


def test_an_error_of_a_data_worker_is_told_as_it_was_raised_there() -> None:
    facts, rows = RunFacts(), dict[str, int]()
    try:
        rows["label_30"] += 1
    except KeyError as error:
        told, line = (
            ExceptionWrapper(where="in DataLoader worker process 0"),
            getattr(error.__traceback__, "tb_lineno", 0),
        )
    with pytest.raises(KeyError) as caught:
        told.reraise()
    facts.failed_by(caught.value)
    assert (facts.error, facts.error_line) == ("KeyError: 'label_30'", f"tests/engine/test_summary.py:{line}")
