from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from forgather_mem.engine.run import Run
from forgather_mem.probes import DeviceProbe, PhaseProbe
from forgather_mem.system import allocator, peak_windows
from forgather_mem.system.allocator import current_allocator
from forgather_mem.telemetry.records import Work
from forgather_mem.units import GIB, MIB
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_devices

GIB_IN_MIB = 1024
Read = Callable[..., dict[str, float]]


def with_less(monkeypatch: pytest.MonkeyPatch, **less: Any) -> None:
    """The accelerator in use is of a kind whose allocator lacks something."""
    lacking = replace(current_allocator(), **less)
    for module in (peak_windows, allocator):
        monkeypatch.setattr(module, "current_allocator", lambda: lacking)


def peak_at(device: SimulatedDevice, gib: int) -> None:
    """One GiB is left of so many."""
    device.hold(gib * GIB_IN_MIB)
    device.hold(GIB_IN_MIB)


@pytest.fixture
def begin(run: Run) -> Callable[..., Work]:
    return lambda **parameters: DeviceProbe(**parameters).begin(run)


def test_the_numbers_are_those_of_torch_s_own_flat_statistics(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = begin()
    device.hold(5 * GIB_IN_MIB)
    device.hold(3 * GIB_IN_MIB)
    stats = {**device.stats(0), "num_alloc_retries": 2, "num_ooms": 1}
    monkeypatch.setattr(device, "stats", lambda index: stats)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda device: stats)
    flat = torch.cuda.memory_stats()
    values = read(probe)
    assert values["device/allocated_bytes"] == flat["allocated_bytes.all.current"]
    assert values["device/reserved_bytes"] == flat["reserved_bytes.all.current"]
    assert values["device/step_peak_bytes"] == flat["allocated_bytes.all.peak"]
    assert values["device/alloc_retries"] == flat["num_alloc_retries"]
    assert values["device/ooms"] == flat["num_ooms"]
    assert values["device/reserved_frac"] == 5 / 8
    assert values["device/unused_frac"] == 2 / 5
    assert values["device/headroom_bytes"] == (8 - 5) * GIB + (5 - 3) * GIB


def test_the_headroom_is_what_this_process_may_still_take(
    begin: Callable[..., Work], read: Read, device: SimulatedDevice
) -> None:
    device.hold(2000)
    device.hold(500)
    device.fraction = 0.5
    device.private = (800, 300)
    values = read(begin())
    assert values["device/headroom_bytes"] == (TOTAL_MIB // 2 - 2000 + 1500 - 500) * MIB


def test_other_devices_that_the_process_uses_are_read_beside_the_current_one_and_unused_ones_are_not_woken(
    begin: Callable[..., Work], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_devices(monkeypatch, 4) as devices:
        devices[0].hold(1000)
        devices[2].hold(3000)
        devices[2].hold(2000)
        probe = begin(reset_peaks=True)
        first = read(probe)
        devices[2].spike(500)
        second = read(probe)
        assert [device.woken for device in devices] == [False] * 4
    assert {name.partition("/")[0] for name in first} == {"device", "device2"}
    assert first["device/allocated_bytes"] == 1000 * MIB
    assert first["device2/allocated_bytes"] == 2000 * MIB
    assert first["device2/reserved_frac"] == 3000 / TOTAL_MIB
    assert first["device2/headroom_bytes"] == (TOTAL_MIB - 2000) * MIB
    assert second["device2/step_peak_bytes"] == 2500 * MIB
    assert second["device/step_peak_bytes"] == 1000 * MIB


def test_a_device_that_is_used_later_is_found_within_a_second(
    begin: Callable[..., Work], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("forgather_mem.probes.device.time.perf_counter", lambda: now[0])
    with simulated_devices(monkeypatch, 2) as devices:
        devices[0].hold(1000)
        probe = begin()
        assert "device1/allocated_bytes" not in read(probe)
        devices[1].hold(10)
        assert "device1/allocated_bytes" not in read(probe)
        now[0] += 1.0
        assert read(probe)["device1/allocated_bytes"] == 10 * MIB
        devices[1].spike(4000)
        assert probe.is_urgent(), "a peak on any of them"


def test_with_resets_each_call_gives_the_peak_since_the_last_one(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read
) -> None:
    peak_at(device, 7)
    probe = begin(reset_peaks=True)
    peaks = []
    for highest in (3, 6, 2):
        peak_at(device, highest)
        peaks.append(read(probe)["device/step_peak_bytes"])
    assert peaks == [3 * GIB, 6 * GIB, 2 * GIB]


def test_without_resets_the_peak_is_the_allocator_s_own_once_it_is_of_this_run(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read
) -> None:
    peak_at(device, 6)
    probe = begin()
    seen = []
    for highest in (3, 7, 2):
        peak_at(device, highest)
        seen.append(read(probe).get("device/step_peak_bytes"))
    assert seen == [None, 7 * GIB, 7 * GIB]
    assert device.peak == 7 * GIB_IN_MIB


def test_without_resets_a_reset_by_the_user_makes_the_peak_known(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read
) -> None:
    peak_at(device, 6)
    probe = begin()
    assert "device/step_peak_bytes" not in read(probe)
    device.reset_peaks(0)
    device.hold(2 * GIB_IN_MIB)
    assert read(probe)["device/step_peak_bytes"] == 2 * GIB


def test_phases_inside_a_step_do_not_cost_the_step_its_peak(
    device: SimulatedDevice, begin: Callable[..., Work], run: Run, read: Read
) -> None:
    step, phases = begin(reset_peaks=True), PhaseProbe().begin(run)
    for phase, highest in (("forward", 8), ("backward", 5), ("optimizer", 2)):
        run.phases.enter(phase)
        peak_at(device, highest)
        run.phases.leave(phase)
    values = read(phases)
    of_device = {name: size for name, size in values.items() if name.startswith("phase/device/")}
    assert of_device == {
        "phase/device/forward_peak_bytes": 8 * GIB,
        "phase/device/backward_peak_bytes": 5 * GIB,
        "phase/device/optimizer_peak_bytes": 2 * GIB,
    }
    assert read(step)["device/step_peak_bytes"] == 8 * GIB


def test_an_allocator_without_peaks_and_retry_counts_gives_the_rest(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_less(monkeypatch, counts_retries=False, reset_peaks=None)
    device.hold(GIB_IN_MIB)
    values = read(begin(reset_peaks=True, headroom=False))
    assert set(values) == {
        "device/allocated_bytes", "device/reserved_bytes", "device/reserved_frac", "device/unused_frac",
    }  # fmt: skip


def test_an_allocator_without_statistics_gives_nothing(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_less(monkeypatch, stats=dict, reset_peaks=None)
    assert read(begin()) == {}


def test_the_driver_is_asked_rarely(device: SimulatedDevice, begin: Callable[..., Work], read: Read) -> None:
    probe = begin()
    assert "device/headroom_bytes" in read(probe)
    assert "device/headroom_bytes" not in read(probe)


def test_a_device_that_is_used_only_after_the_run_began_is_found_then(
    device: SimulatedDevice, begin: Callable[..., Work], read: Read
) -> None:
    device.initialised = False
    probe = begin()
    assert read(probe) == {}
    device.hold(GIB_IN_MIB)
    assert read(probe)["device/allocated_bytes"] == GIB


def test_without_an_accelerator_nothing_is_given_and_nothing_is_woken(begin: Callable[..., Work], read: Read) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    assert current_allocator() is None
    assert read(begin(reset_peaks=True, others=True)) == {}
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
def test_gpu_a_reading_does_not_wait_for_the_device(begin: Callable[..., Work], read: Read) -> None:
    torch.zeros(1, device="cuda")
    probe = begin(reset_peaks=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert read(probe)["device/allocated_bytes"] > 0
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_gpu_reading_creates_no_context_on_devices_that_are_not_used(begin: Callable[..., Work], read: Read) -> None:
    torch.zeros(1, device="cuda")
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009  # no stub has it
    before = [has_context(index) for index in range(torch.cuda.device_count())]
    read(begin(reset_peaks=True))
    assert [has_context(index) for index in range(torch.cuda.device_count())] == before


@pytest.mark.gpu
def test_gpu_a_second_device_is_read_when_it_is_used(begin: Callable[..., Work], read: Read) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices; the simulated ones stand in above")
    torch.zeros(1, device="cuda:0")
    block = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda:1")
    assert read(begin())["device1/allocated_bytes"] == torch.cuda.memory_allocated(1) >= block.nbytes


@pytest.mark.gpu
def test_gpu_phases_have_their_own_peaks(run: Run, read: Read) -> None:
    torch.zeros(1, device="cuda")
    probe = PhaseProbe().begin(run)
    before = torch.cuda.memory_allocated()
    for phase, mib in (("forward", 64), ("backward", 8)):
        run.phases.enter(phase)
        torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
        run.phases.leave(phase)
    values = read(probe)
    assert values["phase/device/forward_peak_bytes"] - before == 64 * MIB
    assert values["phase/device/backward_peak_bytes"] - before == 8 * MIB


@pytest.mark.parametrize("name", ["allocated_bytes", "reserved_bytes", "num_alloc_retries", "num_ooms"])
def test_the_names_we_read_are_those_torch_documents(name: str) -> None:
    documented = torch.cuda.memory_stats.__doc__ or ""
    assert f'"{name}.{{all,large_pool,small_pool}}.' in documented or f'"{name}"' in documented
    assert name in SimulatedDevice().stats(0)
