"""Samples written by a sink of ours, and read back by TensorBoard's own reader."""

from pathlib import Path
from typing import Any

from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Sample
from tests.sinks.plain_run import PlainRun, begun


def sample(step: int, event: str = "step_end", device: int | None = None, **values: float) -> Sample:
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return Sample(event=event, step=step, epoch=None, time_s=1e9 + step, values=named, device=device)


def write(folder: Path, *samples: Sample, **options: Any) -> TensorBoardSink:
    sink = begun(TensorBoardSink(logging_dir=folder, **options))
    for each in samples:
        sink.write(each)
    sink.end(PlainRun())
    return sink
