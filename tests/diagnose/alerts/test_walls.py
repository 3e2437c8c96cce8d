"""How near is the wall? On a device that torch tells of, and on this process's own memory."""

import pytest
import torch

from forgather_mem.diagnose.alerts.forecast import Forecast, Wall, times_shared, wall_text
from forgather_mem.diagnose.leaks.growing import full_at
from forgather_mem.system.headroom import host_rooms
from forgather_mem.system.memory_limit import Room
from forgather_mem.units import GIB, MIB
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_device


def test_on_a_device_it_is_full_when_the_peak_of_a_step_meets_the_wall(device: SimulatedDevice) -> None:
    device.hold(1024)
    wall = Wall("device", 100)
    told = []
    for step in range(1, 120):
        device.hold(1024 + 40 * step)
        device.spike(2048)  # activations, come and gone within the step
        found = wall.look(step)
        if found is not None:
            told.append((step, *found))
    assert len(told) == 1, "one rise is told once"
    step, forecast, room = told[0]
    full_at = (TOTAL_MIB - 2048 - 1024) / 40
    assert forecast.at_step == pytest.approx(full_at, abs=1.5)
    assert step < full_at
    assert wall_text(room, forecast).startswith(f"GPU 0 is full near step {forecast.at_step}")
    assert "it grows 40.0 MiB a step" in wall_text(room, forecast)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_once_the_cache_has_filled_the_card_it_is_not_full_yet(
    device: SimulatedDevice, resets: bool, fraction: float
) -> None:
    """The driver has nothing left from step 30 on; others may reset the peak at each step."""
    wall, passing, rate = TOTAL_MIB * fraction, 1024, 16
    at = (wall - passing - 512) / rate
    device.fraction = fraction
    told, full = [], {}
    ahead = Wall("device", 200)
    for step in range(1, int(at)):
        device.hold(512 + rate * step)
        device.spike(passing)
        if step == 30:
            device.reserved = wall
        found = ahead.look(step)
        full[step] = full_at(step, rate * MIB, True)
        if found is not None:
            told.append((step, *found))
        if resets:
            torch.cuda.reset_peak_memory_stats(0)
    assert {step: number for step, number in full.items() if number != pytest.approx(at, abs=1)} == {}
    assert [forecast.at_step for _, forecast, _ in told] == [pytest.approx(at, abs=1.5)]
    step, forecast, room = told[0]
    assert room.lasting_bytes == pytest.approx(rate * MIB * (forecast.at_step - step), abs=2 * rate * MIB)


def test_the_forecast_for_the_host_is_of_the_limit_that_leaves_the_least() -> None:
    room = host_rooms()[0]
    assert full_at(100, 2**20, False) == pytest.approx(100 + room.free_bytes / 2**20, rel=0.1)


@pytest.mark.parametrize(
    ("limit", "whose"),
    [
        ("container (memory.high)", "the container (memory.high)"),
        ("host", "the host"),
        ("data (RLIMIT_DATA)", "data (RLIMIT_DATA)"),
    ],
)
def test_the_text_names_the_limit_and_who_shares_it(limit: str, whose: str) -> None:
    room = Room(limit, 2 * GIB, GIB)
    forecast = Forecast(at_step=20, low_step=20, high_step=20, steps_left=10.0, bytes_per_step=GIB / 10)
    said = wall_text(room, forecast)
    assert said == f"{whose} is full near step 20, in 10 steps: it grows 102.4 MiB a step, 1.0 GiB are left"
    assert wall_text(room._replace(num_ranks=8), forecast) == f"{said} to its 8 ranks"


@pytest.mark.parametrize(
    ("grown", "gone", "num_ranks", "times"),
    [
        (100, 400, 4, 4.0),  # all ranks grow alike
        (100, 100, 4, 1.0),  # this one alone
        (100, 250, 4, 2.5),
        (100, 900, 4, 4.0),  # a neighbour takes more than all ranks: that may end at any time
        (100, 400, 1, 1.0),
        (100, -50, 4, 1.0),  # others give back
        (0, 400, 4, 1.0),
    ],
)
def test_what_other_ranks_take_of_the_same_limit_counts_as_far_as_they_take_it(
    grown: int, gone: int, num_ranks: int, times: float
) -> None:
    then, now = (1000.0, 5000), (1000.0 + grown, 5000 - gone)
    assert times_shared(then, now, num_ranks) == times


def test_a_device_that_is_steady_and_a_machine_without_one_have_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        wall = Wall("device", 100)
        for step in range(1, 300):
            device.hold(7000 + 300 * (step % 7 == 0))
            assert wall.look(step) is None
    nothing = Wall("device", 100)
    assert [nothing.look(step) for step in range(1, 40)] == [None] * 39
