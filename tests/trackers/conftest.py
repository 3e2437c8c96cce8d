"""A device that holds what a test says."""

from collections.abc import Iterator

import pytest

from tests.simulated_device import SimulatedDevice, simulated_device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    with simulated_device(monkeypatch) as found:
        yield found
