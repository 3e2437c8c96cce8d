"""How near is the wall? On a device that torch tells of, and on this process's own memory."""

from __future__ import annotations

import pytest

from forgather_mem.diagnose.alerts.capacity import Wall, wall_text
from tests.simulated_device import TOTAL_MIB, simulated_device


def test_on_a_device_it_is_full_when_the_peak_of_a_step_meets_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        device.hold(1024)
        wall = Wall("device", 100)
        told = []
        for step in range(1, 120):
            device.hold(1024 + 40 * step)
            device.spike(2048)  # activations, come and gone within the step
            found = wall.look(step)
            if found is not None:
                told.append((step, *found))
        wall.close()
    assert len(told) == 1, "one rise is told once"
    step, forecast, room = told[0]
    full_at = (TOTAL_MIB - 2048 - 1024) / 40
    assert forecast.at_step == pytest.approx(full_at, abs=1.5)
    assert step < full_at
    assert wall_text(room, forecast).startswith(f"GPU 0 is full near step {forecast.at_step}")
    assert "it grows 40.0 MiB a step" in wall_text(room, forecast)


def test_a_device_that_is_steady_and_a_machine_without_one_have_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        wall = Wall("device", 100)
        for step in range(1, 300):
            device.hold(7000 + 300 * (step % 7 == 0))
            assert wall.look(step) is None
    nothing = Wall("device", 100)
    assert [nothing.look(step) for step in range(1, 40)] == [None] * 39
