"""Which peak is the run's, where the memory before the first step was large too."""

import pytest

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.reporting.peaks import report_peaks
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.units import GIB, KIB
from tests.reporting.report_fixtures import built, text_of


def run_with(startup_gib: float, *, is_observed: bool = False) -> RunSummary:
    """Three steps that take 2 GiB at most, after this."""
    summary = RunSummary(RunFacts(RunHeader(script="train.py", is_observed=is_observed), end="finished", wall_s=9.0))
    summary.begin(0, {"host/rss_bytes": 1.0 * GIB})
    first = {"phase/host/startup_peak_bytes": startup_gib * GIB, "step/startup_s": 5.0}
    for step, peak_gib in ((1, 1.5), (2, 2.0), (3, 2.0)):
        values = {"host/rss_bytes": 1.2 * GIB, "host/rss_peak_bytes": peak_gib * GIB, **(first if step == 1 else {})}
        summary.add(Sample("step_end", step, None, float(step), values))
    return summary


@pytest.mark.parametrize(
    ("startup_gib", "is_observed", "first"),
    [
        (4.0, False, ("startup", 0, 4.0)),
        (4.0, True, ("startup", 1, 4.0)),  # it may have been in the passes of step 1
        (2.01, False, ("other", 2, 2.01)),  # two counters of the kernel
        (1.0, False, ("other", 2, 2.0)),
    ],
)
def test_the_startup_has_the_peak_of_the_run_where_it_is_clearly_higher(
    startup_gib: float, is_observed: bool, first: tuple[str, int, float]
) -> None:
    summary = run_with(startup_gib, is_observed=is_observed)
    peaks = list(report_peaks(summary))
    assert (peaks[0].phase, peaks[0].step, peaks[0].bytes) == (*first[:2], int(first[2] * GIB))
    assert {peak.phase for peak in peaks} == {"startup", "other"}
    assert built(summary)["host"]["rss_peak_bytes"] == max(peak.bytes for peak in peaks)


def test_the_parts_of_the_training_are_those_of_its_own_peak() -> None:
    assert built(run_with(4.0))["breakdown"]["other"] == 2 * GIB


def test_the_text_tells_the_startup() -> None:
    assert "STARTUP   5.0 s up to the first step, peak host 4.0 GiB" in text_of(built(run_with(4.0)))
    observed = text_of(built(run_with(4.0, is_observed=True)))
    assert "startup or step 1" in observed
    assert "STARTUP   5.0 s up to the first step, peak host 4.0 GiB" in observed


def test_a_rise_where_no_phase_was_read_has_its_own_step_and_no_phase() -> None:
    summary = RunSummary(RunFacts(RunHeader(script="train.py"), end="finished", wall_s=9.0))
    for step, peak_gib, name in ((8, 8.0, "phase/host/backward_peak_bytes"), (24, 8.0, ""), (28, 8.01, "")):
        phase = {name: peak_gib * GIB} if name else {}
        summary.add(Sample("step_end", step, None, float(step), {"host/rss_peak_bytes": peak_gib * GIB, **phase}))
    peaks = [(peak.step, peak.phase, peak.bytes) for peak in report_peaks(summary)]
    assert peaks == [(28, "other", int(8.01 * GIB)), (8, "backward", 8 * GIB)]
    assert "at step 28." in text_of(built(summary))


@pytest.mark.parametrize(("then_kib", "peak"), [(0, (3, "backward")), (12, (3, "backward")), (4096, (4, "data"))])
def test_of_peaks_that_are_alike_the_first_in_time_is_the_runs(then_kib: int, peak: tuple[int, str]) -> None:
    summary, low, high = RunSummary(RunFacts(end="finished", wall_s=9.0)), 1.0 * GIB, 2.0 * GIB
    later = high + then_kib * KIB
    for step, sizes in ((3, (low, low, high, high)), (4, (later, later, low, low))):
        phases = zip(("data", "forward", "backward", "optimizer"), sizes, strict=True)
        values = {f"phase/host/{phase}_peak_bytes": size for phase, size in phases}
        summary.add(Sample("step_end", step, None, float(step), values | {"host/rss_peak_bytes": max(sizes)}))
    found = list(report_peaks(summary))
    assert ((found[0].step, found[0].phase), found[0].bytes, len(found)) == (peak, later, 4)


def test_what_comes_after_a_step_is_the_next_ones_data() -> None:
    for then_kib, peak in ((12, (4, "backward")), (4096, (4, "data"))):
        summary = RunSummary(RunFacts(end="finished", wall_s=9.0))
        summary.add(Sample("step_end", 3, None, 3.0, {"phase/host/data_peak_bytes": GIB}))
        summary.add(Sample("step_end", 4, None, 4.0, {"phase/host/backward_peak_bytes": 2 * GIB}))
        summary.add(Sample("train_end", 4, None, 4.0, {"phase/host/data_peak_bytes": 2 * GIB + then_kib * KIB}))
        assert next((first.step, first.phase) for first in report_peaks(summary)) == peak


def test_the_peak_of_a_step_that_failed_is_that_steps() -> None:
    for phase, told_step in (("forward", 4), ("data", 3)):
        summary = RunSummary(RunFacts(end="error", error="MemoryError", wall_s=9.0))
        summary.add(Sample("step_end", 3, None, 3.0, {f"phase/host/{phase}_peak_bytes": GIB}))
        summary.add(Sample("train_end", told_step, None, 4.0, {f"phase/host/{phase}_peak_bytes": 2 * GIB}))
        summary.last_step = 3
        assert [peak.step for peak in report_peaks(summary)] == [4]
