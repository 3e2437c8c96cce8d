"""A real run for probes and actions to take part in, without a trainer."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem.engine.run import Run
from forgather_mem.telemetry.records import Moment, Sample


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run.begin(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0))
    yield run
    run.close()


def call(run: Run, begun: Any, event: str = "step_end", **objects: Any) -> dict[str, float]:
    """A work that has begun, called as the engine does."""
    moment = Moment(event, 1, 0.5, None, None, None, objects, run)
    return dict(begun(moment, Sample(event=event, step=1, epoch=0.5, time_s=0.0, values={})))
