"""Memory of this process's children: their own, and shared pages made private (copy-on-write)."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forgather_mem.system.procfs import anonymous_bytes, child_pids, kib_fields
from forgather_mem.system.time_budget import BUDGET_FRAC, TimeBudget
from forgather_mem.telemetry.protocols import RunInfo
from forgather_mem.telemetry.records import Moment, Sample

# Fields of /proc/<pid>/stat after the name (proc_pid_stat(5) counts from 1, including PID and name).
_START_TIME, _START_STACK = 22 - 3, 28 - 3


class WorkerProbe:
    """Children of this process (data workers) and their children, without counting shared pages twice.

    A forked worker starts with all of its parent's anonymous pages, shared. When either side writes to one of them (a
    reference count is enough), each gets its own copy: the worker's private memory grows, its resident memory does not.
    When the worker allocates, both grow. So `workers/own_bytes` is the growth of the worker's anonymous memory since
    the fork, and `workers/cow_bytes` is what is private beyond that: limited by what the parent had at the fork, and
    not a leak. A spawned worker inherits nothing.

    Limits: the inherited size is read when a worker is first seen, as the smaller of its own and its parent's anonymous
    memory. So what a worker allocated before that counts as inherited to the extent that the parent grew too, and
    inherited pages that it freed are missing from its own. A shared-memory page that no other process maps yet (a batch
    in transit) may count as copy-on-write.

    Args:
        every_s: Seconds between readings; less often if they would take over 0.1 % of the time (a worker costs about
            0.2 ms, plus 10 ms per GiB).
        budget_frac: That budget, as a fraction.
        proc_root: Location of the kernel's files; for tests.

    Raises:
        ValueError: for a period or budget that is not positive.
    """

    def __init__(self, every_s: float = 5.0, *, budget_frac: float = BUDGET_FRAC, proc_root: str = "/proc") -> None:
        if not every_s > 0:
            raise ValueError(f"WorkerProbe(every_s={every_s}): give seconds above 0")
        if not 0 < budget_frac <= 1:
            raise ValueError(f"WorkerProbe(budget_frac={budget_frac}): give a share above 0 and at most 1")
        self.every_s = every_s
        self.budget_frac = budget_frac
        self.proc_root = proc_root
        self.reading: Hashable = (type(self), every_s, budget_frac, proc_root)
        self._pace: TimeBudget | None = None
        self._inherited_bytes: dict[tuple[int, int], int] = {}

    def begin(self, run: RunInfo) -> None:
        self._pace = TimeBudget(self.every_s, budget_frac=self.budget_frac)
        self._inherited_bytes = {}

    def end(self, run: RunInfo) -> None:
        if self._pace is not None:
            self._pace.tell(run, "memory of child processes")
        self._pace = None
        self._inherited_bytes = {}

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self._pace is None:
            self._pace = TimeBudget(self.every_s, budget_frac=self.budget_frac)
        return self._pace.take(self._values)

    def _values(self) -> dict[str, float]:
        workers = list(self._workers("self"))
        known = self._inherited_bytes
        self._inherited_bytes = {worker.key: known.get(worker.key, worker.inherited_bytes) for worker in workers}
        own = cow = 0
        for worker in workers:
            grown = max(0, worker.anonymous_bytes - self._inherited_bytes[worker.key])
            own += grown
            cow += max(0, worker.private_bytes - grown)
        return {
            "workers/count": len(workers),
            "workers/own_bytes": own,
            "workers/cow_bytes": cow,
            "host/children_pss_bytes": sum(worker.pss_bytes for worker in workers),
        }

    def _workers(self, parent: str) -> Iterator[_Worker]:
        """The children of a process and theirs; one that exits meanwhile is left out."""
        for pid in child_pids(Path(self.proc_root) / parent):
            with contextlib.suppress(OSError, KeyError):
                yield _worker(Path(self.proc_root), pid, parent)
            yield from self._workers(pid)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pace": None, "_inherited_bytes": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    """One child at this moment; `inherited_bytes` is valid if it is seen for the first time.

    `key` is its PID and start time: PIDs are reused.
    """

    key: tuple[int, int]
    pss_bytes: int
    anonymous_bytes: int
    private_bytes: int
    inherited_bytes: int


def _worker(proc_root: Path, pid: str, parent: str) -> _Worker:
    memory = kib_fields((proc_root / pid / "smaps_rollup").read_bytes())
    stat, of_parent = _stat(proc_root / pid), _stat(proc_root / parent)
    anonymous = memory[b"Anonymous"]
    # The stack address is randomised at exec, so only a process forked without an exec shares it.
    forked = stat[_START_STACK] == of_parent[_START_STACK] != b"0"
    return _Worker(
        key=(int(pid), int(stat[_START_TIME])),
        pss_bytes=memory[b"Pss"],
        anonymous_bytes=anonymous,
        # Private_Dirty includes shared memory that only this process maps, Pss_Anon a part of the shared pages
        private_bytes=min(memory[b"Private_Dirty"], memory.get(b"Pss_Anon", anonymous)),
        inherited_bytes=min(anonymous, anonymous_bytes(proc_root / parent)) if forked else 0,
    )


def _stat(process: Path) -> list[bytes]:
    # the second field is the program's name in parentheses, which may contain anything
    return (process / "stat").read_bytes().rpartition(b")")[2].split()
