"""A real run for the probes to take part in, without a trainer."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem.engine.run import Run
from forgather_mem.telemetry.records import Moment, Sample


@pytest.fixture
def run(tmp_path: Any) -> Iterator[Run]:
    run = Run.begin(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0))
    yield run
    run.close()


@pytest.fixture
def read(run: Run) -> Callable[..., dict[str, float]]:
    """Calls a probe as the engine does: `read(probe, event="step_end", model=...)`; begun if it has to be."""

    def call(probe: Any, event: str = "step_end", **objects: Any) -> dict[str, float]:
        moment = Moment(event, 1, 0.5, None, None, None, objects, run)
        sample = Sample(event=event, step=1, epoch=0.5, time_s=0.0, values={})
        return dict((probe if callable(probe) else probe.begin(run))(moment, sample))

    return call
