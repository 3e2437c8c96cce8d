"""A real run for the actions to take part in."""

from collections.abc import Callable

import pytest

from forgather_mem.engine.run import Run
from tests.bare_run import call
from tests.bare_run import run as run

Act = Callable[..., dict[str, float]]


@pytest.fixture
def act(run: Run) -> Act:
    """Calls an action as the engine does."""
    return lambda action, *event, **objects: call(run, run.begun(action), *event, **objects)
