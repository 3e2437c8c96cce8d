"""Curves that tell nothing are not on the page."""

from pathlib import Path

from forgather_mem.sinks.tensorboard import QuietCurves, TensorBoardSink
from tests.events import scalars
from tests.sinks.plain_run import PlainRun
from tests.sinks.written import sample


def test_a_total_a_flow_and_a_rare_size_begin_when_they_are_not_zero_and_then_fall_to_zero_again() -> None:
    quiet = QuietCurves()
    nothing = {"host/rss_bytes": 5.0, "device/ooms": 0.0, "cache/time_s": 0.0, "host/swap_bytes": 0.0}
    assert quiet.without(nothing) == {"host/rss_bytes": 5.0}
    something = {"host/rss_bytes": 6.0, "device/ooms": 1.0, "cache/time_s": 0.2, "host/swap_bytes": 7.0}
    assert quiet.without(something) == something
    assert quiet.without(nothing) == nothing


def test_a_size_of_each_step_has_a_point_at_each_step_so_that_bands_can_be_drawn() -> None:
    values = {"device/allocated_bytes": 0.0, "device/reserved_bytes": 2.0}
    assert QuietCurves().without(values) == values


def test_of_the_collector_there_is_one_curve_until_a_long_pause() -> None:
    quiet = QuietCurves()
    short = {"gc/pause_s": 0.001, "gc/pause_total_s": 3.0, "gc/pause_max_s": 0.001, "gc/collections": 0.0}
    assert quiet.without(short) == {"gc/pause_s": 0.001}
    assert quiet.without({"gc/tracked": 4e5}) == {}
    long = {**short, "gc/pause_s": 0.006, "gc/collections": 1.0}
    assert quiet.without(long) == long
    calm = {**short, "gc/pause_s": 0.0, "gc/tracked": 4e5}
    assert quiet.without(calm) == calm


def test_what_was_left_out_is_looked_at_until_it_tells_something() -> None:
    quiet = QuietCurves()
    values = {"gc/pause_s": 0.001, "gc/pause_total_s": 3.0, "gc/collections": 2.0, "device/ooms": 0.0}
    left_out = ["gc/pause_total_s", "device/ooms"]
    assert list(quiet.without(values)) == ["gc/pause_s", "gc/collections"]
    assert not quiet.changed(left_out, values)
    assert quiet.changed(left_out, {**values, "device/ooms": 1.0})
    assert quiet.changed(left_out, {**values, "gc/pause_s": 0.006})
    assert list(quiet.without(values)) == [name for name in values if name != "device/ooms"]
    assert quiet.changed(left_out, values)  # in samples with other names it has told something


def test_who_reads_no_pauses_sees_what_he_reads() -> None:
    values = {"gc/collections": 2.0, "gc/tracked": 9.0}
    assert QuietCurves().without(values) == values


def test_each_training_of_a_sink_begins_anew(tmp_path: Path) -> None:
    sink = TensorBoardSink(logging_dir=tmp_path)
    for first, ooms in ((1, 2), (101, 0)):
        sink.begin(PlainRun())
        for step in (first, first + 1):
            sink.write(sample(step, host__swap_bytes=0, device__ooms=ooms * (step - first), device=0))
        sink.end(PlainRun())
    assert scalars(tmp_path) == {"mem_gpu0/ooms": [(2, 2.0)]}
