"""The size of this process before its training, as the parent of `forgather-mem run` saw it once a second."""

from __future__ import annotations

import os
import time

from forgather_mem.formats.ring import read_ring
from forgather_mem.system.process_start import process_age_s
from forgather_mem.telemetry import run_session


def startup_facts() -> dict[str, object]:
    """For a log's header: when the process began, and its age and resident bytes whenever somebody has looked.

    The first training of a process asks before it has a black box of its own: the parent's ring then goes.
    """
    age_s = process_age_s()
    if age_s is None:
        return {}
    began_s = time.time() - age_s
    facts: dict[str, object] = {"process_started_s": round(began_s, 2)}
    try:
        ring = read_ring(os.path.join(run_session.folder() or "", run_session.WAITING_RING))
    except (OSError, ValueError):  # no run, or another training of it was before
        return facts
    if ring.header.get("pid") == os.getpid():  # and not a launcher
        seen = [(sample.time_s - began_s, sample.values.get("host/rss_bytes", 0)) for sample in ring.samples]
        facts["startup"] = [(round(age_s, 2), int(size)) for age_s, size in seen if size]
    return facts
