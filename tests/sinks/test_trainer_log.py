"""Numbers for the trainer's own log lines."""

import pickle

import pytest

from forgather_mem.sinks import TrainerLogSink
from tests.sinks.plain_run import PlainRun, begun
from tests.sinks.written import sample

GIB = 2.0**30


def feed(sink: TrainerLogSink, **values: float) -> None:
    sink.write(sample(1, **values))


def test_a_line_has_the_devices_peak_since_the_last_line() -> None:
    sink = begun(TrainerLogSink(), device=0)
    assert sink.log_values(0) == {}
    for peak in (2, 9, 3):
        feed(sink, host__rss_bytes=50 * GIB, device__step_peak_bytes=peak * GIB)
    assert sink.log_values(3) == {"mem_peak_gib": 9.0}
    feed(sink, device__step_peak_bytes=4 * GIB)
    assert sink.log_values(4) == {"mem_peak_gib": 4.0}
    assert sink.log_values(4) == {}  # nothing is new


def test_without_a_device_it_is_the_hosts_peak_and_a_new_maximum_of_the_run_counts() -> None:
    sink = begun(TrainerLogSink())
    feed(sink, host__rss_bytes=1 * GIB, host__rss_peak_bytes=8 * GIB)  # 8 was before this run's first line
    assert sink.log_values(1) == {"mem_peak_gib": 1.0}
    feed(sink, host__rss_bytes=2 * GIB, host__rss_peak_bytes=9 * GIB)  # a spike between two samples
    assert sink.log_values(2) == {"mem_peak_gib": 9.0}
    feed(sink, host__rss_bytes=2 * GIB, host__rss_peak_bytes=9 * GIB)
    assert sink.log_values(3) == {"mem_peak_gib": 2.0}


def test_gauges_give_extremes_flows_sums_and_totals_the_last_value() -> None:
    keys = {
        "rss_gib": "host/rss_bytes",
        "headroom_gib": "device/headroom_bytes",
        "gc_pause_ms": "gc/pause_s",
        "gc_collections": "gc/collections",
    }
    sink = TrainerLogSink(prefix="memory/", keys=keys)
    for i in (1, 3, 2):
        feed(
            sink, host__rss_bytes=i * GIB, device__headroom_bytes=i * GIB, gc__pause_s=i * 0.001,
            gc__collections=float(i),
        )  # fmt: skip
    assert sink.log_values(3) == {
        "memory/rss_gib": 3.0,
        "memory/headroom_gib": 1.0,
        "memory/gc_pause_ms": pytest.approx(6.0),
        "memory/gc_collections": 2.0,
    }
    assert sink.log_values(4) == {}, "nothing is new"


def test_a_second_training_starts_with_nothing() -> None:
    sink = TrainerLogSink()
    feed(sink, device__step_peak_bytes=GIB)
    sink.begin(PlainRun())
    assert sink.log_values(0) == {}
    feed(sink, host__rss_bytes=2 * GIB)
    assert pickle.loads(pickle.dumps(sink)).log_values(1) == {"mem_peak_gib": 2.0}


def test_wrong_keys_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="did you mean 'host/rss_bytes'"):
        TrainerLogSink(keys={"rss": "host/rss_byte"})
    with pytest.raises(ValueError, match=r"name samples of one unit, not \['GiB', 'ms'\]"):
        TrainerLogSink(keys={"both": ["host/rss_bytes", "gc/pause_s"]})
    with pytest.raises(ValueError, match="give a prefix"):
        TrainerLogSink(prefix="")


def test_groups_add_headroom_the_peaks_of_phases_and_the_tensors() -> None:
    sink = begun(TrainerLogSink(also=["headroom", "phases", "tensors"]))
    feed(sink, host__rss_bytes=2 * GIB, host__available_bytes=9 * GIB, tensors__optimizer_bytes=GIB)
    feed(sink, host__rss_bytes=2 * GIB, host__available_bytes=5 * GIB, phase__host__forward_peak_bytes=3 * GIB)
    feed(sink, host__rss_bytes=2 * GIB, host__available_bytes=7 * GIB, phase__host__forward_peak_bytes=2 * GIB)
    assert sink.log_values(3) == {
        "mem_peak_gib": 2.0, "mem_headroom_gib": 5.0, "mem_phase_forward_gib": 3.0, "mem_tensors_optimizer_gib": 1.0,
    }  # fmt: skip
    feed(sink, host__rss_bytes=1 * GIB)
    assert sink.log_values(4) == {"mem_peak_gib": 1.0}, "there was no forward pass since the last line"


def test_with_a_device_the_groups_are_its_own() -> None:
    sink = begun(TrainerLogSink(keys={"rss_gib": "host/rss_bytes"}, also=["headroom", "phases"]), device=0)
    feed(
        sink, host__rss_bytes=GIB, host__available_bytes=9 * GIB, phase__host__save_peak_bytes=8 * GIB,
        device__step_peak_bytes=2 * GIB, device__headroom_bytes=3 * GIB, phase__device__save_peak_bytes=4 * GIB,
    )  # fmt: skip
    assert sink.log_values(1) == {"mem_rss_gib": 1.0, "mem_headroom_gib": 3.0, "mem_phase_save_gib": 4.0}


def test_an_unknown_group_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"the groups are headroom, phases, tensors; did you mean 'phases'"):
        TrainerLogSink(also=["phase"])
    with pytest.raises(ValueError, match="give a list of groups: headroom"):
        TrainerLogSink(also="phases")
