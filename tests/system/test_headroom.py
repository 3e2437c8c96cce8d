import pytest
import torch

from forgather_mem.system.headroom import device_room, device_rooms, host_rooms
from forgather_mem.units import GIB, MIB
from tests.programs import printed_by
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_device, simulated_devices

CHILD = """
import resource
from forgather_mem.system.headroom import host_rooms
for number, name in ((resource.RLIMIT_AS, "AS"), (resource.RLIMIT_DATA, "DATA")):
    resource.setrlimit(number, (64 << 30, resource.RLIM_INFINITY))
    room = next(room for room in host_rooms() if name in room.limit)
    resource.setrlimit(number, (room.used_bytes + (100 << 20), resource.RLIM_INFINITY))
    room = host_rooms()[0]
    try:
        bytearray(room.free_bytes + (1 << 20))
        print("more than said was free")
    except MemoryError:
        bytearray(room.free_bytes - (4 << 20))
        print(room.limit)
    resource.setrlimit(number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_a_limit_of_the_process_is_found_and_its_room_is_what_can_be_allocated() -> None:
    assert printed_by(CHILD).splitlines() == ["address space (RLIMIT_AS)", "data (RLIMIT_DATA)"]


def test_without_such_limits_the_host_or_its_container_is_the_limit() -> None:
    rooms = host_rooms()
    assert rooms[0].limit in ("host", "container")
    assert rooms[0].where == "host"
    assert 0 < rooms[0].free_bytes < 100 * 1024 * GIB


def test_a_device_has_room_in_what_the_driver_and_torch_have_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_room() is None
    with simulated_device(monkeypatch) as device:
        device.hold(300)
        device.hold(100)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (50 * MIB, 80 * GIB))
        room = device_room()
    assert (room.where, room.limit, room.used_bytes, room.free_bytes) == ("device", "GPU 0", 100 * MIB, 250 * MIB)
    assert (room.passing_bytes, room.lasting_bytes) == (200 * MIB, 50 * MIB), "the peak was 300"


def test_of_several_devices_the_one_that_can_keep_least_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(monkeypatch, 4) as devices:
        devices[0].hold(3000)
        devices[1].hold(1000)
        devices[1].spike(TOTAL_MIB - 1500)
        devices[3].hold(4000)
        rooms, current = device_rooms(), device_room()
        assert not devices[2].woken
    assert [room.limit for room in rooms] == ["GPU 1", "GPU 3", "GPU 0"]
    assert rooms[0].lasting_bytes == 500 * MIB
    assert current == rooms[-1]


def test_the_peak_of_a_step_counts_also_where_others_reset_the_allocator_s(device: SimulatedDevice) -> None:
    device.hold(1024)
    device.spike(2048)
    assert device_room() is not None
    torch.cuda.reset_peak_memory_stats(0)
    room = device_room()
    assert room.lasting_bytes == (TOTAL_MIB - 1024 - 2048) * MIB


@pytest.mark.parametrize("used_by_others", [0, 7000])
def test_a_fraction_set_for_this_process_is_a_limit(device: SimulatedDevice, used_by_others: int) -> None:
    device.fraction = 0.25
    device.others = used_by_others
    device.hold(1000)
    device.hold(400)
    room = device_room()
    may_take = min(TOTAL_MIB // 4, TOTAL_MIB - used_by_others) - 1000
    assert room.free_bytes == (may_take + 600) * MIB


def test_segments_are_walked_only_when_the_reserved_memory_has_changed(device: SimulatedDevice) -> None:
    device.hold(1000)
    device.hold(400)
    device.private = (500, 100)
    for _ in range(20):
        device_room()
    assert device.walks == 1


@pytest.mark.parametrize(("told", "number"), [("8", 8), ("", 1), ("many", 1), ("0", 1)])
def test_ranks_of_one_host_share_its_room(monkeypatch: pytest.MonkeyPatch, told: str, number: int) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    assert host_rooms()[0].num_ranks == number
