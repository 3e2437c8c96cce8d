"""The work of a rule that notes the phases as they begin."""

from typing import Any


class PhaseNotes:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def begin(self, run: Any) -> None:
        run.watch_phases(self)

    def phase_begin(self, phase: str) -> None:
        self.seen.append(phase)

    def phase_end(self, phase: str) -> None: ...

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        return {}
