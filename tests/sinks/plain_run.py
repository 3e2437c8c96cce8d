"""What a sink gets to know of a training, as plain values."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from forgather_mem.engine.facts import header_of
from forgather_mem.telemetry.records import Finding, PhaseWatcher, RunInfo
from forgather_mem.telemetry.report_part import RunHeader


@dataclass
class PlainRun:
    """A training that is told by its facts alone."""

    output_dir: Path | None = None
    folder: Path | None = None
    rank: int = 0
    world_size: int = 1
    device: int | None = None
    phase: str = "other"
    step: int = 0
    told: list[Finding] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def watch_phases(self, watcher: PhaseWatcher) -> None:
        """Nobody announces phases here."""

    def emit(self, finding: Finding) -> None:
        self.told.append(finding)

    @cached_property
    def header(self) -> RunHeader:
        return replace(header_of(None, self.step), rank=self.rank, world_size=self.world_size)

    def so_far(self) -> dict[str, object]:
        return {"step": self.step}

    def print_line(self, text: str) -> None:
        self.said.append(text)


_: RunInfo = PlainRun()


def begun(sink: Any, **facts: Any) -> Any:
    """The sink, in a training of such facts."""
    sink.begin(PlainRun(**facts))
    return sink
