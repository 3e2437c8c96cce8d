"""The TensorBoard sink, read back with TensorBoard's own reader."""

import logging
import os
import pickle
import threading
import warnings
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Finding
from tests.events import scalars
from tests.sinks.plain_run import PlainRun
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
        (1, 1e9 + 1, 2),
        (2, 1e9 + 2, 2),
        (3, 1e9 + 3, 2),
    ]


def test_a_description_stands_in_the_first_record_of_its_tag_only(tmp_path: Path) -> None:
    write(
        tmp_path,
        sample(1, host__rss_bytes=GIB),
        sample(2, host__rss_bytes=GIB),
        sample(3, host__rss_bytes=GIB, host__anon_bytes=GIB),
        layout=False,
    )
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


def test_two_sinks_in_one_process_write_two_files_with_all_points(tmp_path: Path) -> None:
    sinks = [TensorBoardSink(logging_dir=tmp_path) for _ in range(2)]
    for step in range(1, 6):
        sinks[0].write(sample(step, host__rss_bytes=GIB))
        sinks[1].write(sample(step, gc__collections=step))
    for sink in sinks:
        sink.end(PlainRun())
    assert {tag: len(points) for tag, points in scalars(tmp_path).items()} == {
        "mem_host/rss_gib": 5,
        "mem_gc/collections": 5,
    }


def test_only_rank_0_writes(tmp_path: Path) -> None:
    sink = TensorBoardSink(logging_dir=tmp_path / "run")
    sink.begin(PlainRun(rank=1, world_size=2))
    sink.write(sample(1, host__rss_bytes=GIB))
    sink.tell(Finding(kind="verdict", step=1, text="all well"))
    sink.end(PlainRun(rank=1, world_size=2))
    assert not (tmp_path / "run").exists()


def test_a_writer_that_was_handed_in_gets_one_record_a_step_and_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 0.5, 1)
        sink = TensorBoardSink(writer, layout=False)
        sink.begin(PlainRun())
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
    sink = TensorBoardSink(logging_dir=tmp_path, hparams={"lr": 0.1})
    sink.begin(PlainRun())
    sink.write(sample(1, host__rss_bytes=GIB))
    copy = pickle.loads(pickle.dumps(sink))
    assert (copy.logging_dir, copy.hparams, copy.folder) == (tmp_path, {"lr": 0.1}, None)
    sink.end(PlainRun())


def test_a_trainers_own_curve_stays_live_beside_our_file(tmp_path: Path) -> None:
    # The loader in Python follows one file of a folder: the one whose name sorts last.
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("train/loss", 0.5, 1)
        writer.flush()
        sink = TensorBoardSink(logging_dir=tmp_path)
        sink.write(sample(1, host__rss_bytes=GIB))
        reader = EventAccumulator(str(tmp_path))
        reader.Reload()
        assert {"train/loss", "mem_host/rss_gib"} == set(reader.Tags()["scalars"])
        writer.add_scalar("train/loss", 0.4, 2)
        writer.flush()
        reader.Reload()
        assert [point.step for point in reader.Scalars("train/loss")] == [1, 2]
        sink.end(PlainRun())


GIB = 2.0**30


def test_a_writer_of_torch_does_not_hang_a_forked_child(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path), max_queue=1) as writer:
        sink = TensorBoardSink(writer, layout=False)
        sink.write(sample(1, host__rss_bytes=GIB))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
            child = os.fork()
        if not child:
            for step in range(100, 130):  # more than its queue takes
                sink.write(sample(step, host__rss_bytes=GIB))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert scalars(tmp_path) == {"mem_host/rss_gib": [(1, 1.0)]}


GIB = 2.0**30


def test_a_writer_that_refuses_records_is_counted_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.file_writer.event_writer.close()  # from now on it raises OSError
    sink = TensorBoardSink(writer, layout=False)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            sink.write(sample(step, host__rss_bytes=GIB))
    assert sink.problems() == "TensorBoard: 3 of 3 records dropped (Writer is closed; TensorBoard's writer)"
    assert len(caplog.records) == 1
