import gc

import pytest
import torch

from forgather_mem.actions import ClearCache
from forgather_mem.units import MIB
from tests.actions.conftest import Act
from tests.reclaim.things import a_cycle
from tests.simulated_device import simulated_devices

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")


@no_gpu
def test_without_an_accelerator_nothing_is_done_and_nothing_given(act: Act) -> None:
    assert act(ClearCache()) == {}
    assert not torch.cuda.is_initialized()


@no_gpu
@pytest.mark.parametrize("garbage_collection", [True, False])
def test_garbage_is_collected_only_if_asked_for_also_without_an_accelerator(act: Act, garbage_collection: bool) -> None:
    gc.disable()
    cycle = a_cycle()
    act(ClearCache(garbage_collection=garbage_collection))
    gc.enable()
    assert (cycle() is None) == garbage_collection
    gc.collect()


def test_what_all_devices_gave_back_is_reported(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(monkeypatch, 3) as devices:
        for device, mib in zip(devices, (300, 200), strict=False):
            device.hold(mib)
            device.hold(100)
        action = ClearCache()
        first, second = act(action), act(action)
        assert not devices[2].woken
    assert (first["cache/freed_bytes"], second["cache/freed_bytes"]) == ((200 + 100) * MIB, 0)
    assert 0 < second["cache/time_s"] < 1


@pytest.mark.gpu
def test_gpu_unused_memory_goes_back_and_live_memory_stays(act: Act) -> None:
    kept = torch.ones(MIB, device="cuda")
    torch.cuda.empty_cache()
    dropped = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
    del dropped
    before = torch.cuda.memory_reserved()
    values = act(ClearCache())
    assert values["cache/freed_bytes"] == before - torch.cuda.memory_reserved() >= 64 * MIB
    assert kept.sum().item() == MIB
