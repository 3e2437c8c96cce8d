"""The TensorBoard sink, read back with TensorBoard's own reader."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.formats.summaries import ScalarRecord
from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Finding, Sample
from tests.sinks.plain_run import PlainRun

GIB = 2.0**30


def sample(step: int, event: str = "step_end", device: int | None = None, **values: float) -> Sample:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return Sample(event=event, step=step, epoch=None, time_s=1e9 + step, values=named, device=device)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(p.step, p.value) for p in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def records(folder: Path) -> list[Event]:
    (path,) = folder.glob("*tfevents*")
    return [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]


def write(folder: Path, *samples: Sample, **options: Any) -> TensorBoardSink:
    sink = TensorBoardSink(logging_dir=folder, **options)
    sink.begin(PlainRun())
    for each in samples:
        sink.write(each)
    sink.end(PlainRun())
    return sink


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


def test_gauges_of_other_events_get_tags_of_their_own_and_totals_keep_theirs(tmp_path: Path) -> None:
    write(
        tmp_path,
        sample(5, host__rss_bytes=GIB, gc__collections=1),
        sample(5, event="evaluate", host__rss_bytes=3 * GIB, gc__collections=2, gc__pause_s=0.001),
    )
    assert scalars(tmp_path) == {
        "mem_host/rss_gib": [(5, 1.0)],
        "mem_host/evaluate_rss_gib": [(5, 3.0)],
        "mem_gc/collections": [(5, 1.0)],
        "mem_gc/pause_ms": [(5, 1.0)],
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
    for step in range(5):
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


class ScalarsOnly:
    """A user's own writer: it knows numbers and texts, and nothing of events."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def add_scalar(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    add_text = add_scalar


def test_a_writer_without_events_gets_its_numbers_one_by_one() -> None:
    writer = ScalarsOnly()
    sink = TensorBoardSink(writer)
    sink.begin(PlainRun())
    sink.write(sample(1, host__rss_bytes=GIB, gc__collections=2))
    sink.tell(Finding(kind="verdict", step=1, text="all well"))
    assert writer.calls[:2] == [
        ("mem_host/rss_gib", 1.0, 1, 1e9 + 1),
        ("mem_gc/collections", 2.0, 1, 1e9 + 1),
    ]
    assert writer.calls[2][:3] == ("mem_report/verdict", "    all well", 1)


def test_a_writer_that_refuses_records_is_counted_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.file_writer.event_writer.close()  # from now on it raises OSError
    sink = TensorBoardSink(writer, layout=False)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            sink.write(sample(step, host__rss_bytes=GIB))
    assert sink.problems() == "TensorBoard: 3 of 3 records dropped by the writer (Writer is closed)"
    assert len(caplog.records) == 1


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


def test_without_a_c_checksum_the_stock_writer_is_used(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['google_crc32c._crc32c'] = None\n"
        "from forgather_mem.telemetry.records import Sample\n"
        "from forgather_mem.sinks import TensorBoardSink\n"
        "sink = TensorBoardSink(logging_dir=sys.argv[1])\n"
        "for step in (1, 2):\n"
        "    values = {'host/rss_bytes': step * 2.0**30}\n"
        "    sink.write(Sample(event='step_end', step=step, epoch=None, time_s=1.0, values=values))\n"
        "sink.end(None)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root, check=True
    )
    assert "no C implementation" in done.stderr
    assert scalars(tmp_path) == {"mem_host/rss_gib": [(1, 1.0), (2, 2.0)]}


def test_a_remote_folder_is_written_by_the_stock_writer_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    import fsspec

    with caplog.at_level(logging.WARNING):
        write(  # fsspec's file system in memory: an address like s3://, without a network
            "memory://bucket/run",  # type: ignore[arg-type]
            sample(1, host__rss_bytes=GIB),
            sample(2, host__rss_bytes=2 * GIB),
        )
    assert [record.message for record in caplog.records] == [
        "memory://bucket/run is remote: TensorBoard's own writer is used; a run that is killed loses up to two minutes"
    ]
    (path,) = fsspec.filesystem("memory").glob("/bucket/run/*tfevents*")
    assert scalars(f"memory:/{path}") == {  # type: ignore[arg-type]
        "mem_host/rss_gib": [(1, 1.0), (2, 2.0)]
    }


def test_a_protocol_that_nobody_serves_is_told_and_costs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sink = write("nowhere://bucket/run", sample(1, host__rss_bytes=GIB))  # type: ignore[arg-type]
    assert "1 of 1 records dropped by the writer" in (sink.problems() or "")
    assert len(caplog.records) == 2


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


@settings(deadline=None)
@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(0, 2e9),
    st.lists(st.floats(), min_size=8, max_size=8),
    st.booleans(),
)
def test_a_payload_parses_to_the_event_that_tensorboards_messages_make(
    tags: list[str], step: int, time_s: float, numbers: list[float], described: bool
) -> None:
    record = ScalarRecord(tags, dict.fromkeys(tags, "d") if described else {})
    doubled = [number * 2 for number in numbers]
    found = Event.FromString(record.payload(step, time_s, numbers, [2.0] * len(tags)))
    expected = Event(step=step, wall_time=time_s, summary=Summary())
    for tag, number in zip(tags, doubled, strict=False):
        value = expected.summary.value.add(tag=tag, simple_value=number)
        if described:
            value.metadata.summary_description = "d"
            value.metadata.plugin_data.plugin_name = "scalars"
            value.metadata.data_class = DATA_CLASS_SCALAR
    assert repr(found) == repr(expected)  # equal, also where a number is none
    record.descriptive = False
    for value in expected.summary.value:
        value.ClearField("metadata")
    found = Event.FromString(record.payload(step, time_s, numbers, [2.0] * len(tags)))
    assert repr(found) == repr(expected)


def test_a_tag_has_one_point_at_a_step_and_what_a_flow_adds_later_is_in_the_next(tmp_path: Path) -> None:
    first = sample(8, collect__objects=3.0, gc__collections=2.0, phase__host__evaluate_peak_bytes=GIB)
    later = sample(8, "epoch_end", collect__objects=10.0, gc__collections=5.0, host__rss_bytes=GIB)
    last = sample(8, "train_end", collect__objects=14.0, gc__collections=6.0, host__rss_bytes=GIB)
    write(tmp_path, first, later, last, sample(9, gc__collections=6.0), sample(10, collect__objects=1.0))
    read = scalars(tmp_path)
    assert read["mem_collect/objects"] == [(8, 3.0), (9, 11.0), (10, 1.0)]
    assert read["mem_gc/collections"] == [(8, 2.0), (9, 6.0)]
    assert read["mem_host/epoch_end_rss_gib"] == read["mem_host/train_end_rss_gib"] == [(8, 1.0)]


def test_a_point_that_could_not_be_written_may_be_written_later_in_the_step(tmp_path: Path) -> None:
    folder = tmp_path / "in the way"
    folder.write_text("")
    sink = TensorBoardSink(logging_dir=folder)
    sink.begin(PlainRun())
    sink.write(sample(1, collect__objects=3.0))
    folder.unlink()
    time.sleep(0.15)  # until the next try
    sink.write(sample(1, "epoch_end", collect__objects=5.0))
    sink.end(PlainRun())
    assert scalars(folder)["mem_collect/objects"] == [(1, 5.0)]
