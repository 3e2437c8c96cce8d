"""The public test double."""

from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Finding, Sample
from tests.sinks.plain_run import PlainRun


def test_samples_findings_and_series_are_kept_until_the_next_training() -> None:
    capture = Capture()
    for step, event in ((1, "step_end"), (2, "step_end"), (2, "evaluate")):
        values = {"host/rss_bytes": float(step), **({"gc/pause_s": 0.5} if step == 1 else {})}
        capture.write(Sample(event=event, step=step, epoch=None, time_s=1.0, values=values))
    capture.tell(Finding(kind="leak", step=2, text="It grows."))
    assert capture.series("host/rss_bytes") == [(1, 1.0), (2, 2.0), (2, 2.0)]
    assert capture.series("host/rss_bytes", event="evaluate") == [(2, 2.0)]
    assert capture.series("gc/pause_s") == [(1, 0.5)]
    assert [finding.kind for finding in capture.findings] == ["leak"]
    capture.begin(PlainRun())
    assert (capture.samples, capture.findings) == ([], [])
