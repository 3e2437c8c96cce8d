"""The sink that leaves word of where a run was, even when the run is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forgather_mem.errors import ours
from forgather_mem.files import make_real_folder
from forgather_mem.formats.ring_memory import own_state
from forgather_mem.formats.ring_writer import ERROR, RingWriter, ring_name
from forgather_mem.telemetry.events import STEP_PHASES
from forgather_mem.telemetry.records import Finding, RunInfo, Sample
from forgather_mem.telemetry.run_session import register

if TYPE_CHECKING:
    from forgather_mem.formats.ring_writer import LastState


class BlackBoxSink:
    """Records each change of phase, each record and each finding in `ring.rank{r}`, in the run's folder.

    Its content survives SIGKILL and the out-of-memory killer (see `formats.ring`); a record costs about a microsecond.
    The file takes its 110 KiB at the start. Without a folder for the run there is no file. Under `forgather-mem run`
    the phases of steps stand in memory of the waiting parent, which writes them when this process has ended; the file
    itself has a state every 0.1 s then.

    Attributes:
        beside: That memory, in which the run stores the phases of steps; None without a parent.
    """

    key = ("black box",)
    beside: LastState | None = None
    wants_begin = True
    wants_end = False  # of a step's phases: another phase, or the step's record, follows soon

    def __init__(self) -> None:
        self._ring: RingWriter | None = None
        self._run: RunInfo | None = None
        self._end = "finished"
        self._problem: str | None = None

    def begin(self, run: RunInfo) -> None:
        """A training begins: the file is created now, for failures before the first step."""
        self._close()
        self._problem, self._end = None, "finished"
        folder = run.folder
        if folder is None:
            self._problem = "nothing was written: there is no output folder; set FORGATHER_MEM_DIR"
            return
        path = folder / ring_name(run.rank)
        try:
            make_real_folder(folder)
            self._ring = RingWriter(path, run.header.plain(), own_state)
        except ours(OSError) as error:
            self._problem = f"nothing written: {error.strerror or error}; {path}"
            return
        self._run, self.beside = run, self._ring.beside
        self.wants_begin = self.beside is None
        register(folder, path.name)
        run.watch_phases(self)

    def phase_begin(self, phase: str) -> None:
        ring, run = self._ring, self._run
        if ring is None or run is None:
            return
        if run.step == ring.step and phase in STEP_PHASES:
            ring.phase(phase)
        else:
            ring.state(run.step, phase)

    def step_ended(self, step: int) -> None:
        if self._ring is not None:
            self._ring.step_ended(step)

    def phase_end(self, phase: str) -> None:
        if self._ring is not None and self._run is not None:
            self._ring.state(self._run.step, self._run.phase)

    def write(self, sample: Sample) -> None:
        """Write the record of one step or event."""
        if self._ring is not None:
            event, step, epoch, time_s, values, device = sample
            self._ring.sample(step, values, event=event, epoch=epoch, time_s=time_s, device=device)

    def tell(self, finding: Finding) -> None:
        """Write a finding; of the one that closes the run, only how it ended."""
        if finding.kind == "verdict":
            report: Any = finding.data.get("report") or {}
            self._end = report.get("run", {}).get("end") or self._end
        elif self._ring is not None:
            self._ring.note(finding.kind, finding.step, finding.text)

    def failing(self, end: str, error: str | None) -> None:
        """Note how the run ends: a rank that has lost its peer is killed before it has closed."""
        if self._ring is not None and self._run is not None:
            self._ring.note(ERROR, self._run.step, error or "")
            self._ring.state(self._run.step, self._run.failed_phase or self._run.phase, end)

    def end(self, run: RunInfo) -> None:
        """The training has ended in an orderly way: readers of the file see that it was not killed."""
        if self._ring is not None:
            self._ring.state(run.step, "other", self._end)
            self._problem = self._ring.problem
        self._close()

    def problems(self) -> str | None:
        """Why there is no file, or something is missing in it; None when all is there."""
        problem = self._ring.problem if self._ring is not None else self._problem
        return f"black box: {problem}" if problem else None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ring": None, "_run": None, "beside": None}  # an open file is this process's own

    def _close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        self._ring = self._run = self.beside = None
