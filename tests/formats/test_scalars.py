"""The fast reader, against tensorboard's own."""

import math
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.formats.event_file import EventFile, crc32c, frame, read_scalars
from forgather_mem.formats.summaries import ScalarRecord, text_payload

Point = tuple[int, float, float]


def by_tensorboard(folder: Path) -> dict[str, list[Point]]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    return {
        tag: [(point.step, point.wall_time, point.value) for point in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def by_us(folder: Path) -> dict[str, list[Point]]:
    series = read_scalars(folder)
    return {
        tag: list(zip(s.steps.tolist(), s.wall_times_s.tolist(), s.values.tolist(), strict=True))
        for tag, s in series.items()
    }


def write_events(path: Path, events: list[Event]) -> None:
    checksum = crc32c()
    version = Event(file_version="brain.Event:2")
    path.write_bytes(b"".join(frame(event.SerializeToString(), checksum) for event in [version, *events]))


STEPS = st.one_of(st.integers(0, 5), st.integers(-3, 2**40))
NUMBERS = st.floats(width=32, allow_nan=False)
TAGS = st.lists(st.sampled_from(["a", "b", "mem_host/rss_gib", "mem_host/rss_gic", "\u00e4/b"]), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(STEPS, st.floats(0, 2e9), TAGS, st.lists(NUMBERS, min_size=4, max_size=4)), max_size=30))
def test_any_records_are_read_as_tensorboard_reads_them(
    tmp_path: Path, records: list[tuple[int, float, list[str], list[float]]]
) -> None:
    events = [
        Event(
            step=step,
            wall_time=time_s,
            summary=Summary(value=[{"tag": t, "simple_value": x} for t, x in zip(tags, xs, strict=False)]),
        )
        for step, time_s, tags, xs in records
    ]
    write_events(tmp_path / "events.out.tfevents.1", events)
    assert by_us(tmp_path) == by_tensorboard(tmp_path)


def test_files_of_torchs_writer_are_read_without_tensors(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(50):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
            writer.add_scalar("new/style", step * 0.1, step, new_style=True)
            writer.add_text("note", "not a scalar", step)
    assert by_us(tmp_path) == {"train/loss": by_tensorboard(tmp_path)["train/loss"]}


def test_our_own_files_are_read_with_descriptions_texts_and_changing_names(tmp_path: Path) -> None:
    rows = [ScalarRecord(["a", "b"], {"a": "What it is."}), ScalarRecord(["b", "c", "a"], {"c": "Else."})]
    file = EventFile(tmp_path, lambda: None)
    for step in range(300):
        assert file.ready()
        row, width = (rows[1], 3) if step % 7 == 0 else (rows[0], 2)
        file.add(row.payload(step, 1e9 + step, [step] * width, [1.0, 2.0, 3.0][:width]))
        row.descriptive = False
        if step % 100 == 0:
            file.add(text_payload("note", "not a scalar", step, 1e9))
    file.close()
    found = by_us(tmp_path)
    assert found == by_tensorboard(tmp_path)
    assert [step for step, _, _ in found["b"]] == list(range(300))
    assert len(found["c"]) == 43


def test_a_torn_end_is_left_out_and_files_follow_each_other(tmp_path: Path) -> None:
    for number in (1, 2):
        points = [(step, {"value": [{"tag": "a", "simple_value": step}]}) for step in (number, number + 1)]
        events = [Event(step=step, wall_time=1.0, summary=summary) for step, summary in points]
        write_events(tmp_path / f"events.out.tfevents.{number}", events)
    (tmp_path / "notes.txt").write_text("no event file")
    whole = (tmp_path / "events.out.tfevents.1").read_bytes()
    (tmp_path / "events.out.tfevents.1").write_bytes(whole[:-5])
    assert read_scalars(tmp_path)["a"].steps.tolist() == [1, 2, 3]


def test_numbers_that_are_none_stay_what_they_are(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step, value in enumerate([math.nan, math.inf, -math.inf, 0.0]):
            writer.add_scalar("a", value, step)
    values = read_scalars(tmp_path)["a"].values
    assert np.isnan(values[0])
    assert values[1:].tolist() == [math.inf, -math.inf, 0.0]


def test_an_empty_folder_and_an_empty_file_hold_nothing(tmp_path: Path) -> None:
    assert read_scalars(tmp_path) == {}
    (tmp_path / "events.out.tfevents.1").touch()
    assert read_scalars(tmp_path) == {}


def test_many_different_tags_of_one_length_are_all_found(tmp_path: Path) -> None:
    events = [
        Event(step=5, wall_time=2.0, summary={"value": [{"tag": f"tag/{i:04d}", "simple_value": i}]})
        for i in range(500)
    ]
    write_events(tmp_path / "events.out.tfevents.1", events)
    assert by_us(tmp_path) == {f"tag/{i:04d}": [(5, 2.0, float(i))] for i in range(500)}
