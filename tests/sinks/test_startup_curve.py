"""A log begins with what the parent of `forgather-mem run` has seen of its process."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.engine.facts import header_of, startup_of
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.page.readings import read_readings
from forgather_mem.system.process_start import process_age_s
from forgather_mem.telemetry import run_session
from forgather_mem.units import MIB


def looked_at(folder: Path, pid: int, *sizes: int) -> None:
    ring = RingWriter(folder / run_session.WAITING_RING, {"pid": pid})
    for size in sizes:
        ring.sample(0, {"host/rss_bytes": float(size)}, event="other")
    ring.close()


def told() -> dict[str, Any]:
    began_s = header_of(None).process_started_s
    return {"process_started_s": began_s, "startup": startup_of(began_s)}


def test_what_the_parent_saw_is_told_by_the_age_of_the_process(session: Path) -> None:
    looked_at(session, os.getpid(), 10 * MIB, 300 * MIB)
    now_s, age_s = time.time(), process_age_s() or 0
    facts = told()
    assert facts["process_started_s"] == pytest.approx(now_s - age_s, abs=0.2)
    assert [size for _, size in facts["startup"]] == [10 * MIB, 300 * MIB]
    assert [seen_s for seen_s, _ in facts["startup"]] == pytest.approx([age_s, age_s], abs=0.2)


def test_what_it_saw_of_a_launcher_is_not_about_this_process(session: Path) -> None:
    looked_at(session, os.getppid(), 10 * MIB)
    assert told()["startup"] == ()


@pytest.mark.parametrize("content", [b"", b"no ring"])
def test_without_a_whole_ring_there_is_no_curve(session: Path, content: bytes) -> None:
    (session / run_session.WAITING_RING).write_bytes(content)
    assert told()["startup"] == ()


@pytest.mark.parametrize(
    "startup", ['"text"', '{"age_s": 3}', '[[1, "x"]]', "[[1, 2], [3]]", "[[1e400, 1]]", "[]", "[null]"]
)
def test_a_header_of_anybody_gives_no_curve_that_can_not_be(tmp_path: Path, startup: str) -> None:
    header = f'{{"type": "header", "schema": 1, "rank": 0, "startup": {startup}}}\n'
    (tmp_path / "memory.rank0.jsonl").write_text(header)
    assert read_readings(tmp_path).startup == ()
