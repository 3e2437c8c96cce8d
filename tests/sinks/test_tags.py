"""The tag and the unit of each number."""

from pathlib import Path

import pytest

from forgather_mem.telemetry.records import Sample
from tests.events import scalars
from tests.sinks.written import sample, write

GIB = 2.0**30


def test_sizes_shares_times_and_counts_stand_in_the_units_of_their_tags(tmp_path: Path) -> None:
    values = {
        "host/rss_bytes": 3.5 * GIB,
        "host/limit_used_frac": 0.25,
        "gc/pause_s": 0.002,
        "gc/collections": 7.0,
        "step/self_s": 3e-5,
        "device/reserved_bytes": 2 * GIB,
        "mine/queue": 11.0,
    }
    write(tmp_path, Sample(event="step_end", step=4, epoch=0.5, time_s=1e9, values=values, device=2))
    assert scalars(tmp_path) == {
        "mem_host/rss_gib": [(4, 3.5)],
        "mem_host/limit_used_pct": [(4, 25.0)],
        "mem_gc/pause_ms": [(4, 2.0)],
        "mem_gc/collections": [(4, 7.0)],
        "mem_step/self_us": [(4, pytest.approx(30.0))],
        "mem_gpu2/reserved_gib": [(4, 2.0)],
        "mem_mine/queue": [(4, 11.0)],
    }


def test_extremes_are_those_of_the_run_so_far(tmp_path: Path) -> None:
    peaks, rooms = [2.0, 9.0, 3.0, 1.0], [5.0, 7.0, 4.0, 6.0]
    write(
        tmp_path,
        *(
            sample(step, device=0, device__step_peak_bytes=peak * GIB, device__headroom_bytes=room * GIB)
            for step, (peak, room) in enumerate(zip(peaks, rooms, strict=True))
        ),
    )
    found = {tag: [value for _, value in points] for tag, points in scalars(tmp_path).items()}
    assert found["mem_gpu0/step_peak_gib"] == peaks
    assert found["mem_gpu0/peak_gib"] == [2.0, 9.0, 9.0, 9.0]
    assert found["mem_gpu0/headroom_gib"] == [5.0, 5.0, 4.0, 4.0]
