"""TensorBoard's own writer, where ours can't be used."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Finding
from tests.events import scalars
from tests.programs import printed_by
from tests.sinks.plain_run import begun
from tests.sinks.written import sample, write

GIB = 2.0**30


class ScalarsOnly:
    """A user's own writer: it knows numbers and texts, and nothing of events."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def add_scalar(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    add_text = add_scalar


def test_a_writer_without_events_gets_its_numbers_one_by_one() -> None:
    writer = ScalarsOnly()
    sink = begun(TensorBoardSink(writer))
    sink.write(sample(1, host__rss_bytes=GIB, gc__collections=2))
    sink.tell(Finding(kind="verdict", step=1, text="all well"))
    assert writer.calls[:2] == [("mem_host/rss_gib", 1.0, 1, 1e9 + 1), ("mem_gc/collections", 2.0, 1, 1e9 + 1)]
    assert writer.calls[2][:3] == ("mem_report/verdict", "    all well", 1)


def test_without_a_c_checksum_the_stock_writer_is_used(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['google_crc32c._crc32c'] = None; sys.stderr = sys.stdout\n"
        "from forgather_mem.telemetry.records import Sample\n"
        "from forgather_mem.sinks import TensorBoardSink\n"
        "from tests.sinks.plain_run import PlainRun\n"
        "sink = TensorBoardSink(logging_dir=sys.argv[1])\n"
        "sink.begin(PlainRun())\n"
        "for step in (1, 2):\n"
        "    values = {'host/rss_bytes': step * 2.0**30}\n"
        "    sink.write(Sample(event='step_end', step=step, epoch=None, time_s=1.0, values=values))\n"
        "sink.end(None)\n"
    )
    assert "no C implementation" in printed_by(code, tmp_path)
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
        "memory://bucket/run is remote: TensorBoard's writer is used; a killed run loses up to two minutes"
    ]
    (path,) = fsspec.filesystem("memory").glob("/bucket/run/*tfevents*")
    points = EventAccumulator(f"memory:/{path}").Reload().Scalars("mem_host/rss_gib")
    assert [(point.step, point.value) for point in points] == [(1, 1.0), (2, 2.0)]


def test_a_protocol_that_nobody_serves_is_told_and_costs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sink = write("nowhere://bucket/run", sample(1, host__rss_bytes=GIB))  # type: ignore[arg-type]
    assert "1 of 1 records dropped" in (sink.problems() or "")
    assert len(caplog.records) == 2
