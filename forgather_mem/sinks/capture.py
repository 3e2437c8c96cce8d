"""A sink that keeps all samples and findings, for tests of rules and callbacks."""

from __future__ import annotations

from forgather_mem.telemetry.records import Finding, RunInfo, Sample


class Capture:
    """Keeps everything it receives; starts over with each training.

    >>> capture = Capture()
    >>> capture.write(Sample(event="step_end", step=3, epoch=None, time_s=0.0, values={"host/rss_bytes": 5.0}))
    >>> capture.series("host/rss_bytes")
    [(3, 5.0)]

    Attributes:
        samples: All samples, in order.
        findings: All findings, in order.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.findings: list[Finding] = []

    def begin(self, run: RunInfo) -> None:
        """A training begins: forget the one before."""
        self.samples.clear()
        self.findings.clear()

    def write(self, sample: Sample) -> None:
        """Keep a sample."""
        self.samples.append(sample)

    def tell(self, finding: Finding) -> None:
        """Keep a finding."""
        self.findings.append(finding)

    def series(self, name: str, event: str | None = None) -> list[tuple[int, float]]:
        """(step, value) of every sample with this name, for one event or all."""
        return [
            (sample.step, sample.values[name])
            for sample in self.samples
            if name in sample.values and event in (None, sample.event)
        ]
