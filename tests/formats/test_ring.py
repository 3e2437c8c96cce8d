"""The ring: written by a process that is killed, read by another."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.formats import ring_writer as layout
from forgather_mem.formats.ring import read_ring, ring_files
from forgather_mem.formats.ring_writer import RingWriter, ring_name
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import METRICS
from forgather_mem.telemetry.records import Sample


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / ring_name(0)
    header = {"rank": 0, "pid": 7, "script": "train.py", "step": 40, "kills": {"count": 0}}
    ring = RingWriter(path, header)
    ring.sample(41, {"host/rss_bytes": 5.0, "host/available_bytes": 9.0, "mine": 1.0}, epoch=0.5, time_s=100.0)
    ring.sample(42, {"host/rss_bytes": 6.0}, event="evaluate", time_s=101.0, device=1)
    ring.note("leak", 42, "the host grows")
    ring.state(42, "save")
    read = read_ring(path)
    assert read.header == header
    assert (read.state.step, read.state.phase, read.state.end) == (42, "save", "running")
    assert read.samples == [
        Sample("step_end", 41, 0.5, 100.0, {"host/rss_bytes": 5.0, "host/available_bytes": 9.0}),
        Sample("evaluate", 42, None, 101.0, {"host/rss_bytes": 6.0, "host/available_bytes": 9.0}, 1),
    ]
    assert [(finding.kind, finding.step, finding.text) for finding in read.findings] == [("leak", 42, "the host grows")]
    for phase in PHASES:
        ring.phase(phase)
        assert read_ring(path).state == read.state._replace(phase=phase)
    ring.state(42, "other", "finished")
    assert read_ring(path).state.end == "finished"
    ring.close()
    ring.state(43, "save")
    assert read_ring(path).state.step == 42


def test_a_new_ring_is_one_already(tmp_path: Path) -> None:
    RingWriter(tmp_path / "ring", {"step": 3}).close()
    read = read_ring(tmp_path / "ring")
    assert (read.state.step, read.state.phase, read.samples, read.findings) == (3, "other", [], [])


def test_a_record_torn_anywhere_is_passed_over(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "ring", {"rank": 0})
    for step in (1, 2, 3):
        ring.sample(step, {"host/rss_bytes": float(step)})
        ring.note("noise", step, "text")
    for phase in ("forward", "backward"):
        ring.state(3, phase)
    whole = (tmp_path / "ring").read_bytes()
    at = layout.SAMPLES_AT + 3 * layout.SAMPLE.size
    number = layout.SAMPLE.pack(4, 9.0, 4, 0.1, 0, -1, *([8.0] * len(layout.NAMES)), 4)
    for cut in range(1, layout.SAMPLE.size - 8, 7):  # its front is new, its back is still the old one
        torn = bytearray(whole)
        torn[at : at + cut] = number[:cut]
        (tmp_path / "torn").write_bytes(torn)
        assert [sample.step for sample in read_ring(tmp_path / "torn").samples] == [1, 2]
    torn = bytearray(whole)
    torn[layout.NOTES_AT + 2 * layout.NOTE_STRIDE + layout.NOTE.size + 3] ^= 1
    torn[layout.STATE_AT + layout.CELL_BYTES] ^= 1  # the newest state, the third: the one before it holds
    (tmp_path / "torn").write_bytes(torn)
    read = read_ring(tmp_path / "torn")
    assert [finding.step for finding in read.findings] == [1, 3]
    assert read.state.phase == "forward"


@pytest.mark.parametrize("data", [b"", b"FGMRING2", b"x" * layout.FILE_BYTES, b"\0" * layout.FILE_BYTES])
def test_what_is_no_ring_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ring").write_bytes(data)
    with pytest.raises(ValueError, match="no whole ring"):
        read_ring(tmp_path / "ring")


def test_rings_are_found_by_rank(tmp_path: Path) -> None:
    for name in ("ring.rank10", "ring.rank2", "ring.rank2.old", "ring.rankx"):
        (tmp_path / name).touch()
    assert ring_files(tmp_path) == {2: tmp_path / "ring.rank2", 10: tmp_path / "ring.rank10"}


KILLED = """
import sys
from forgather_mem.formats.ring_writer import RingWriter
ring = RingWriter(sys.argv[1], {"rank": 0})
values = {"host/rss_bytes": 0.0}
for step in range(1, 10**9):
    ring.state(step - 1, "forward")
    ring.phase("backward")
    ring.state(step - 1, "save")
    values["host/rss_bytes"] = float(step)
    ring.sample(step, values)
    if step % 1000 == 0:
        print(step, flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_its_last_step(tmp_path: Path) -> None:
    for attempt in range(3):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "ring")], stdout=subprocess.PIPE)
        for _ in range(attempt + 1):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        read = read_ring(tmp_path / "ring")
        steps = [sample.step for sample in read.samples]
        assert read.state.end == "running"
        assert steps[-1] >= 1000 * (attempt + 1)
        assert steps == list(range(steps[0], steps[-1] + 1))
        assert read.state.step - steps[-1] in (0, -1)
        assert all(sample.values["host/rss_bytes"] == sample.step for sample in read.samples)


def test_its_words_are_those_of_the_rest() -> None:
    assert set(layout.NAMES) <= {metric.name for metric in METRICS}
