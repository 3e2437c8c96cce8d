"""Memory of this process's children: data workers' own, pages they copied (copy-on-write), and other children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from forgather_mem.errors import missing
from forgather_mem.probes.budgeted import Budgeted
from forgather_mem.system.process_start import START_TIME, stat_fields
from forgather_mem.system.procfs import anonymous_bytes, child_pids, is_named, kib_fields
from forgather_mem.system.time_budget import BUDGET_FRAC, TimeBudget
from forgather_mem.telemetry.records import Moment, RunInfo, Sample, Work

_START_STACK = 28 - 3  # of `stat_fields`
# What torch's worker loop calls its thread, since torch 2.6: the only sign of it that other processes can read.
_WORKER_NAME = "pt_data_worker"


def is_data_worker(process: Path) -> bool:
    """Whether the process with this folder under /proc runs the worker loop of a torch DataLoader (8 us).

    False also for a worker that has been forked just now and has not come to its loop.
    """
    return is_named(process, _WORKER_NAME)


@dataclass(unsafe_hash=True)
class WorkerProbe(Budgeted):
    """Data workers of this process, and its other children, without counting shared pages twice.

    Data workers are the children that run the worker loop of a torch DataLoader, and what these have started. All
    others (torch.compile's pool, a logger's service, pools of your own) are "other children": their number and
    proportional set size are read.

    A forked worker starts with all of its parent's anonymous pages, shared. When either side writes to one of them (a
    reference count is enough), each gets its own copy: the worker's private memory grows, its resident memory does not.
    When the worker allocates, both grow. So `workers/own_bytes` is the growth of the worker's anonymous memory since
    the fork, and `workers/cow_bytes` is what is private beyond that: limited by what the parent had at the fork, and
    not a leak. A spawned worker inherits nothing.

    Only the growth of anonymous memory is added between these readings, up to sixty times as often and within four
    times the budget, where it makes 1 % of the workers' size: a run of some seconds shows what they come to.

    Limits: the inherited size is read when a worker is first seen, as the smaller of its own and its parent's anonymous
    memory. So what a worker allocated before that counts as inherited to the extent that the parent grew too, and
    inherited pages that it freed are missing from its own. A shared-memory page that no other process maps yet (a batch
    in transit) may count as copy-on-write.

    Args:
        every_s: Seconds between readings; less often if they would take over 0.1 % of the time (a worker costs about
            0.2 ms, plus 10 ms per GiB).
        budget_frac: That budget, as a fraction.
        zeros: Also tell the numbers of a run that has had no child.
        proc_root: Location of the kernel's files; for tests.

    Raises:
        ValueError: for a period or budget that is not positive.
    """

    every_s: float = 5.0
    _: KW_ONLY
    budget_frac: float = BUDGET_FRAC
    zeros: bool = True
    proc_root: str = "/proc"

    def begin(self, run: RunInfo) -> Work:
        return _Workers(self, run)


class _Workers:
    """The probe in one run."""

    def __init__(self, probe: WorkerProbe, run: RunInfo) -> None:
        self._pace = TimeBudget(probe.every_s, budget_frac=probe.budget_frac)
        run.at_close(lambda: self._pace.tell(run, "memory of child processes"))
        self._between = TimeBudget(probe.every_s / 60, budget_frac=4 * probe.budget_frac, expected_s=4 * probe.every_s)
        self._children, self._told_bytes = Children(probe.proc_root), 0
        self._tells = probe.zeros  # there have been children, or zeros are told, too

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        return self._pace.take(self._values) or self._between.take(self._values, quick=True)

    def _values(self, quick: bool = False) -> dict[str, float]:
        children = self._children.read(quick)
        self._tells |= bool(children)
        if not self._tells:
            return {}
        workers = [child for child in children if child.is_worker]
        others, pss = [child for child in children if not child.is_worker], sum(child.pss_bytes for child in workers)
        if quick and abs(pss - self._told_bytes) <= 0.01 * self._told_bytes:
            return {}
        self._told_bytes = pss
        return {
            "workers/count": len(workers),
            "workers/own_bytes": sum(child.own_bytes for child in workers),
            "workers/cow_bytes": sum(child.copied_bytes for child in workers),
            "workers/pss_bytes": pss,
            "host/children_pss_bytes": sum(child.pss_bytes for child in children),
            "host/other_children": len(others),
            "host/other_children_pss_bytes": sum(child.pss_bytes for child in others),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildMemory:
    """One child at this moment.

    Attributes:
        is_worker: Whether it is a data worker, or was started by one.
        pss_bytes: Its proportional set size.
        own_bytes: What its anonymous memory has grown by since the fork.
        copied_bytes: What is private beyond that: pages of its parent that were copied.
        shared_bytes: Inherited pages that have not been copied: at most so much can be.
        inherited_bytes: What it was forked with.
        anonymous_bytes: Its anonymous memory.
    """

    is_worker: bool
    pss_bytes: int
    own_bytes: int
    copied_bytes: int
    shared_bytes: int
    inherited_bytes: int
    anonymous_bytes: int


_Known: TypeAlias = dict[tuple[int, int], ChildMemory]  # by PID and start time, since PIDs are reused


class Children:
    """The children of this process and theirs, read from /proc; remembers what each had when it was read last."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._root = Path(proc_root)
        self._known: _Known = {}

    def read(self, quick: bool = False) -> list[ChildMemory]:
        """All that are alive; one that exits meanwhile is left out.

        In a `quick` reading only what is new is read whole: to others the growth of their anonymous memory is added.
        """
        known: _Known = {}
        found = list(self._below("self", False, known, quick))
        self._known = known
        return found

    def one_worker(self) -> tuple[ChildMemory | None, tuple[str, ...]]:
        """The first of the data workers of this process, and the PIDs of all of them: a reading of all costs more."""
        known: _Known = {}
        pids = tuple(pid for pid in child_pids(self._root / "self") if is_data_worker(self._root / pid))
        found = None
        if pids:
            with missing(OSError, KeyError):
                found = self._child(pids[0], "self", True, known)
        self._known = known
        return found, pids

    def _below(self, parent: str, of_worker: bool, known: _Known, quick: bool) -> Iterator[ChildMemory]:
        for pid in child_pids(self._root / parent):
            is_worker = of_worker or is_data_worker(self._root / pid)
            with missing(OSError, KeyError):
                yield self._child(pid, parent, is_worker, known, quick)
            yield from self._below(pid, is_worker, known, quick)

    def _child(self, pid: str, parent: str, is_worker: bool, known: _Known, quick: bool = False) -> ChildMemory:
        process = self._root / pid
        key = (int(pid), int(stat_fields(process)[START_TIME]))
        before = self._known.get(key)
        if quick and before is not None:
            known[key] = before
            grown = anonymous_bytes(process) - before.anonymous_bytes
            own, pss = max(0, before.own_bytes + grown), max(0, before.pss_bytes + grown)
            return replace(before, is_worker=is_worker, own_bytes=own, pss_bytes=pss)
        memory = kib_fields((process / "smaps_rollup").read_bytes())
        anonymous = memory[b"Anonymous"]
        first = before.inherited_bytes if before else min(anonymous, inherited_bytes(process, self._root / parent))
        # Private_Dirty includes shared memory that only this process maps, Pss_Anon a part of the shared pages
        private = min(memory[b"Private_Dirty"], memory.get(b"Pss_Anon", anonymous))
        own = max(0, anonymous - first)
        copied = max(0, private - own)
        known[key] = ChildMemory(
            is_worker=is_worker, pss_bytes=memory[b"Pss"], own_bytes=own, copied_bytes=copied,
            shared_bytes=max(0, first - copied), inherited_bytes=first, anonymous_bytes=anonymous,
        )  # fmt: skip
        return known[key]


def inherited_bytes(process: Path, parent: Path) -> int:
    """Anonymous memory that a process had when its parent forked it, if asked soon after; 0 if it was not forked.

    Args:
        process, parent: Their folders under /proc.

    Raises:
        OSError: if one has ended.
    """
    # The stack address is randomised at exec, so only a process forked without an exec shares it
    forked = stat_fields(process)[_START_STACK] == stat_fields(parent)[_START_STACK] != "0"
    return min(anonymous_bytes(process), anonymous_bytes(parent)) if forked else 0
