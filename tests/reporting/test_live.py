"""The lines of `forgather-mem live`, from black boxes as a training writes them."""

import os
import socket
from dataclasses import replace
from pathlib import Path

from forgather_mem.diagnose.leaks import watch
from forgather_mem.formats.ring_writer import RingWriter, ring_name
from forgather_mem.reporting.live import live_text, running
from forgather_mem.system.process_start import process_start
from forgather_mem.telemetry.report import LeakReport, LeakSuspect
from forgather_mem.units import GIB, KIB, MIB
from tests.reporting.left_by_ranks import no_end

HOLDER = LeakSuspect(
    type="list", bytes_per_step=1.0, count_per_step=1.0, held_by="Trainer.kept_logits", allocated_at="train.py:41"
)


def here(folder: Path, rank: int = 0, *, growing: bool = True) -> RingWriter:
    """The black box of a training in this process: 20 steps, one a second."""
    header = {"rank": rank, "pid": os.getpid(), "host": socket.gethostname(), "process": process_start()}
    ring = RingWriter(folder / ring_name(rank), {**header, "script": "/home/me/train.py"})
    for step in range(1, 21):
        size = GIB + (step * 100 * MIB if growing else 0)
        values = {"host/rss_bytes": size, "host/rss_peak_bytes": size, "host/available_bytes": 9 * GIB}
        ring.sample(step, {**values, "step/time_s": 0.5}, time_s=1000.0 + step)
    ring.state(20, "backward")
    return ring


def test_step_phase_memory_with_its_curve_and_what_was_found(tmp_path: Path) -> None:
    ring = here(tmp_path)
    ring.note("settings", 1, "settings")
    ring.note("leak", 12, "host memory grows\nsecond line")
    ring.note("alert", 14, "a title \x1b[2J")
    (state,) = [ring.state for ring in running(tmp_path).values()]
    text = live_text(running(tmp_path), state.time_s + 2.0, 80)
    assert text.splitlines() == [
        "== forgather-mem live == train.py == step 20, backward, 2.0 s ago ==============",
        "host      3.0 GiB, peak 3.0 GiB, 9.0 GiB left       ___..---==++***%%###",
        "speed     500.0 ms a step",
        "step 12    host memory grows; second line",
        r"step 14    a title \x1b[2J",
    ]
    ring.close()


def test_a_leak_is_told_with_its_holder_and_the_line(tmp_path: Path) -> None:
    ring = here(tmp_path)
    leak = LeakReport(verdict="leak", bytes_per_step=495.7 * KIB, suspects=(HOLDER, replace(HOLDER, held_by="another")))
    ring.note("leak", 12, watch._sentence(leak))
    ring.note("leak", 15, watch._sentence(replace(leak, suspects=())))
    lines = live_text(running(tmp_path), 0.0, 80).splitlines()
    assert lines[-3:] == [
        "step 12    leak: 495.7 KiB a step; held by Trainer.kept_logits, made at",
        "           train.py:41; held by another, made at train.py:41",
        "step 15    leak: 495.7 KiB a step",
    ]
    ring.close()


def test_a_curve_that_hardly_changes_is_flat_and_other_ranks_have_a_line_each(tmp_path: Path) -> None:
    rings = [here(tmp_path, rank, growing=False) for rank in (0, 1)]
    lines = live_text(running(tmp_path), 0.0, 80).splitlines()
    assert lines[1].endswith("  " + "_" * 20)
    assert lines[3:] == ["rank 0    step 20, backward, host 1.00 GiB", "rank 1    step 20, backward, host 1.00 GiB"]
    for ring in rings:
        ring.close()


def test_a_run_that_has_ended_or_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    ring = here(tmp_path)
    no_end(tmp_path, 1, 2)
    (tmp_path / ring_name(2)).write_bytes(b"half")
    assert list(running(tmp_path)) == [0]
    ring.state(20, "other", "finished")
    ring.close()
    assert running(tmp_path) == {}
