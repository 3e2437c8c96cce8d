"""Ends all processes of a plan. Nothing is imported that takes time: a script that is planned has not begun."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from forgather_mem.telemetry import run_session


def end_processes(folder: str, spared: set[int] | frozenset[int] = frozenset()) -> None:
    """Kill all processes of the plan with this folder but these, until no more come: a pool starts others meanwhile."""
    mark = f"{run_session.PLAN}={folder}".encode()
    for _ in range(20):
        others = {*spared}
        for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc")))):
            state, parent, *_ = *proc_file(pid, "stat").rpartition(b") ")[2].split(), b"Z", b"-1"
            is_marked = mark in proc_file(pid, "environ").split(b"\0")  # a child may be without variables
            if state != b"Z" and (parent in {b"%d" % one for one in others} or is_marked):
                others.add(pid)
        if others <= spared:
            return
        for pid in others - spared:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def proc_file(pid: int, what: str) -> bytes:
    """What the kernel tells of a process; nothing of one that is gone or not ours."""
    with suppress(OSError), open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()
    return b""
