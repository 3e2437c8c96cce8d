"""The TensorBoard sink, read back with TensorBoard's own reader."""

import logging
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.sinks.tensorboard import QuietCurves, TensorBoardSink
from forgather_mem.telemetry.records import Finding
from forgather_mem.testing.small_run import in_child
from tests.events import scalars
from tests.sinks.plain_run import PlainRun, begun
from tests.sinks.written import sample, write

GIB = 2.0**30


def records(folder: Path) -> list[Event]:
    (path,) = folder.glob("*tfevents*")
    return [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]


def test_a_step_is_one_record_and_its_time_is_the_samples(tmp_path: Path) -> None:
    write(tmp_path, *(sample(step, host__rss_bytes=GIB, host__anon_bytes=GIB) for step in (1, 2, 3)), layout=False)
    version, *events = records(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert [(event.step, event.wall_time, len(event.summary.value)) for event in events] == [
        (1, 1e9 + 1, 2), (2, 1e9 + 2, 2), (3, 1e9 + 3, 2),
    ]  # fmt: skip


def test_a_description_stands_in_the_first_record_of_its_tag_only(tmp_path: Path) -> None:
    write(
        tmp_path, sample(1, host__rss_bytes=GIB), sample(2, host__rss_bytes=GIB),
        sample(3, host__rss_bytes=GIB, host__anon_bytes=GIB), layout=False,
    )  # fmt: skip
    described = [
        [value.metadata.summary_description[:21] for value in event.summary.value] for event in records(tmp_path)[1:]
    ]
    assert described == [["GiB. Resident memory "], [""], ["", "GiB. Anonymous reside"]]


def test_a_second_training_starts_a_new_file_and_its_extremes_anew(tmp_path: Path) -> None:
    sink = TensorBoardSink(logging_dir=tmp_path)
    for first_step in (1, 101):
        sink.begin(PlainRun())
        sink.write(sample(first_step, device=0, device__headroom_bytes=GIB * first_step))
        sink.end(PlainRun())
    sink.write(sample(999, host__rss_bytes=GIB))  # between trainings: nothing
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path) == {"mem_gpu0/headroom_gib": [(1, 1.0), (101, 101.0)]}


def test_a_training_that_begins_again_without_an_end_closes_the_first_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sink = TensorBoardSink(logging_dir=tmp_path)
    for step in (1, 2, 3):
        sink.begin(PlainRun())
        sink.write(sample(step, host__rss_bytes=GIB))
    sink.end(PlainRun())
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if "forgather" in t.name]
    assert scalars(tmp_path) == {"mem_host/rss_gib": [(1, 1.0), (2, 1.0), (3, 1.0)]}


def test_a_writer_that_was_handed_in_gets_one_record_a_step_and_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 0.5, 1)
        sink = begun(TensorBoardSink(writer, layout=False))
        sink.write(sample(1, host__rss_bytes=GIB, gc__collections=2))
        sink.write(sample(2, host__rss_bytes=GIB, gc__collections=3))
        sink.tell(Finding(kind="verdict", step=2, text="all well"))
        sink.end(PlainRun())
        writer.add_scalar("train/loss", 0.4, 2)
    assert scalars(tmp_path) == {
        "train/loss": [(1, 0.5), (2, pytest.approx(0.4))],
        "mem_host/rss_gib": [(1, 1.0), (2, 1.0)],
        "mem_gc/collections": [(1, 2.0), (2, 3.0)],
    }
    assert sum(len(event.summary.value) == 2 for event in records(tmp_path)) == 2


def test_a_writer_and_a_folder_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"logging_dir='out'\): the writer has its folder already"):
        TensorBoardSink(object(), logging_dir="out")


def test_a_sink_can_be_pickled_in_the_middle_of_a_run(tmp_path: Path) -> None:
    sink = begun(TensorBoardSink(logging_dir=tmp_path, hparams={"lr": 0.1}))
    sink.write(sample(1, host__rss_bytes=GIB))
    copy = pickle.loads(pickle.dumps(sink))
    assert (copy.logging_dir, copy.hparams, copy.folder) == (tmp_path, {"lr": 0.1}, None)
    sink.end(PlainRun())


def test_a_trainers_own_curve_stays_live_beside_our_file(tmp_path: Path) -> None:
    # The loader in Python follows one file of a folder: the one whose name sorts last.
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 0.5, 1)
        writer.flush()
        sink = begun(TensorBoardSink(logging_dir=tmp_path))
        sink.write(sample(1, host__rss_bytes=GIB))
        reader = EventAccumulator(str(tmp_path)).Reload()
        assert {"train/loss", "mem_host/rss_gib"} == set(reader.Tags()["scalars"])
        writer.add_scalar("train/loss", 0.4, 2)
        writer.flush()
        reader.Reload()
        assert [point.step for point in reader.Scalars("train/loss")] == [1, 2]
        sink.end(PlainRun())


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_writer_of_torch_does_not_hang_a_forked_child(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path), max_queue=1) as writer:
        sink = begun(TensorBoardSink(writer, layout=False))
        sink.write(sample(1, host__rss_bytes=GIB))

        def child() -> None:
            for step in range(100, 130):  # more than its queue takes
                sink.write(sample(step, host__rss_bytes=GIB))

        assert in_child(child) is None
    assert scalars(tmp_path) == {"mem_host/rss_gib": [(1, 1.0)]}


def test_a_writer_that_refuses_records_is_counted_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.file_writer.event_writer.close()  # from now on it raises OSError
    sink = begun(TensorBoardSink(writer, layout=False))
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            sink.write(sample(step, host__rss_bytes=GIB))
    assert sink.problems() == "TensorBoard: 3 of 3 records dropped (Writer is closed; TensorBoard's writer)"
    assert len(caplog.records) == 1


# ---- one point of a tag at each step ----


def test_a_tag_has_one_point_at_a_step_and_what_a_flow_adds_later_is_in_the_next(tmp_path: Path) -> None:
    first = sample(8, collect__objects=3.0, gc__collections=2.0, phase__host__evaluate_peak_bytes=GIB)
    later = sample(8, "epoch_end", collect__objects=7.0, gc__collections=5.0, host__rss_bytes=GIB)
    last = sample(8, "train_end", collect__objects=4.0, gc__collections=6.0, host__rss_bytes=GIB)
    write(tmp_path, first, later, last, sample(9, gc__collections=6.0), sample(10, collect__objects=1.0))
    read = scalars(tmp_path)
    assert read["mem_collect/objects"] == [(8, 3.0), (9, 11.0), (10, 1.0)]
    assert read["mem_gc/collections"] == [(8, 2.0), (9, 6.0)]
    assert read["mem_host/epoch_end_rss_gib"] == read["mem_host/train_end_rss_gib"] == [(8, 1.0)]


def test_a_point_that_could_not_be_written_may_be_written_later_in_the_step(tmp_path: Path) -> None:
    folder = tmp_path / "in the way"
    folder.write_text("")
    sink = begun(TensorBoardSink(logging_dir=folder))
    sink.write(sample(1, collect__objects=3.0))
    folder.unlink()
    time.sleep(0.15)  # until the next try
    sink.write(sample(1, "epoch_end", collect__objects=5.0))
    sink.end(PlainRun())
    assert scalars(folder)["mem_collect/objects"] == [(1, 5.0)]


# ---- curves that have nothing to tell ----


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
    assert list(quiet.without(values)) == ["gc/pause_s", "gc/collections"]
    assert list(quiet.without({**values, "device/ooms": 1.0})) == ["gc/pause_s", "gc/collections", "device/ooms"]
    assert list(quiet.without({**values, "gc/pause_s": 0.006})) == list(values)
    assert list(quiet.without(values)) == list(values)


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
