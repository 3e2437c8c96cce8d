"""One point of a tag at each step."""

import time
from pathlib import Path

from forgather_mem.sinks import TensorBoardSink
from tests.events import scalars
from tests.sinks.plain_run import PlainRun
from tests.sinks.written import sample, write

GIB = 2.0**30


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
