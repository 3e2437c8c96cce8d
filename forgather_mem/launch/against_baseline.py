"""`run --baseline`: the trainings of this run against a file that says what they took before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forgather_mem.comparing.baseline import Baseline, NoBaseline
from forgather_mem.telemetry.report import RunReport


def against_baseline(
    path: str, reports: Sequence[RunReport], say: Callable[[str], object], *, update: bool
) -> tuple[list[str], list[str]]:
    """What has grown, a sentence each, and what could not be compared; or the file is written."""
    try:
        try:
            before = Baseline.read(path)
        except NoBaseline:
            if not update:
                raise
            before = None
        now = Baseline.of(reports, before)
        if update:
            now.write(path)
            say(f"forgather-mem: the baseline is in {path}")
            return [], []
    except NoBaseline as error:
        return [], [f"--baseline: {error}"]
    assert before is not None, "only an update needs none"
    grown = list(before.grown(now))
    if not grown and before.has_shrunk(now):
        say("forgather-mem: less memory than in the baseline; --update-baseline keeps it there")
    return grown, [f"--baseline: {sentence}" for sentence in before.missing(now)]
