from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from forgather_mem.system.headroom import device_room, host_rooms
from forgather_mem.units import GIB, MIB
from tests.simulated_device import simulated_device

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
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["address space (RLIMIT_AS)", "data (RLIMIT_DATA)"], done.stderr


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
    assert room is not None
    assert (room.where, room.limit, room.used_bytes, room.free_bytes) == ("device", "GPU 0", 100 * MIB, 250 * MIB)
