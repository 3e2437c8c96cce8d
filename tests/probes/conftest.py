"""A real run for the probes to take part in."""

from collections.abc import Callable

import pytest

from forgather_mem.engine.run import Run
from tests.bare_run import call
from tests.bare_run import run as run


@pytest.fixture
def read(run: Run) -> Callable[..., dict[str, float]]:
    """Calls a probe as the engine does: `read(probe, event="step_end", model=...)`; begun if it has to be."""
    return lambda probe, *event, **objects: call(run, probe if callable(probe) else probe.begin(run), *event, **objects)
