"""What was in memory: the error's own numbers, torch's, the kernel's; libraries' messages are in other tests here."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.memory_in_use import look_at_memory
from forgather_mem.diagnose.oom.messages import OF_TORCH
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.heap.census import Holding
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.oom_messages import LIBRARY_MESSAGES, OUT_OF_MEMORY
from tests.memory import status_bytes
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_device, simulated_devices

pytestmark = pytest.mark.alone(forked=True)  # what other tests have left alive has owners, too

HOST = OutOfMemory(kind="CPU allocator", where="host", error_type="RuntimeError", message="")
DEVICE = OutOfMemory(kind="CUDA allocator", where="device", error_type="OutOfMemoryError", message="", device=0)


def memory_then(
    found: OutOfMemory, phase: str, model: object = None, optimizer: object = None,
    census: Sequence[Holding] = (), **sizes: Any,
) -> Failure:  # fmt: skip
    failure = Failure(found=found, phase=phase, census=census)
    look_at_memory(failure, model, optimizer, **sizes)
    return failure


def test_on_the_host_the_parts_add_up_to_what_the_process_has() -> None:
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters())
    then = memory_then(HOST, "forward", model, optimizer, before_bytes=50 * MIB)
    anonymous = status_bytes("RssAnon")
    assert then.in_use["parameters"] == 4 * (10**6 + 1000)
    own = sum(size for part, size in then.in_use.items() if part != "reserved address space")
    assert own == pytest.approx(anonymous, abs=4 * MIB)
    assert then.in_use["there before the first step"] >= 50 * MIB - then.in_use["parameters"]
    assert 0 < then.free_bytes < then.limit_bytes


def test_what_the_census_has_found_is_named_and_the_rest_is_not_taken_for_it() -> None:
    before = status_bytes("RssAnon")
    data = torch.ones(30 * MIB // 4)
    census = [
        Holding(name="`data`", num_bytes=30 * MIB),
        Holding(kind="activations", num_bytes=7 * MIB),
        Holding(name="small objects", num_bytes=9),
    ]
    then = memory_then(HOST, "forward", None, None, census, before_bytes=before + 30 * MIB)
    assert (then.in_use["`data`"], then.in_use["activations"], then.in_use["small objects"]) == (30 * MIB, 7 * MIB, 9)
    known = sum(size for part, size in then.in_use.items() if part not in ("reserved address space", "other"))
    assert known >= 0.9 * status_bytes("RssAnon")
    assert len(data) > 0


def test_what_functions_of_an_evaluation_hold_is_told_as_its_own() -> None:
    census = [Holding(name=f"`kept` of {name}()", num_bytes=9) for name in ("main", "add")]
    then = Failure(found=HOST, phase="evaluate", census=census, functions=("main", "evaluation_loop", "add"))
    look_at_memory(then)
    assert {"`kept` of main()", "evaluation (`kept` of add())"} <= then.in_use.keys()


def test_what_came_free_with_the_error_was_there_before() -> None:
    """And no more than this process has ever had, however little was asked for."""
    wanted = OutOfMemory(kind="MemoryError", where="host", error_type="", message="", requested_bytes=0)
    torch.ones(status_bytes("VmHWM") // 4)  # higher than ever
    for phase, part in (("data", "the batch"), ("save", "copies being made"), ("optimizer", "temporary")):
        then, most = memory_then(wanted, phase), status_bytes("VmHWM") - status_bytes("VmRSS")
        assert then.freed_bytes == pytest.approx(most, rel=0.05)
        assert then.in_use[part] == then.freed_bytes


def test_what_nobody_had_memory_to_look_into_is_no_librarys() -> None:
    there, missed = (
        memory_then(HOST, "forward", None, None, census, before_bytes=MIB).in_use
        for census in ([Holding(name="all")], ())
    )
    assert missed["not looked into"] > 0 == there.get("not looked into", 0)
    assert ("Python and libraries" in there, "Python and libraries" in missed) == (True, False)
    assert missed["there before the first step"] > 0, "among it what the script had"


def test_data_workers_are_a_part_of_their_own() -> None:
    then = memory_then(HOST, "forward", workers_bytes=123 * MIB)
    assert then.in_use["data workers"] == 123 * MIB


def test_a_full_dev_shm_is_told_as_such() -> None:
    shm = os.statvfs("/dev/shm")
    found = OutOfMemory(kind="shared memory", where="host", error_type="", message="")
    then = memory_then(found, "data")
    assert (then.limit, then.limit_bytes, then.used_bytes) == ("/dev/shm", shm.f_blocks * shm.f_frsize, None)
    assert set(then.in_use) <= {"files in /dev/shm"}


def test_a_devices_own_numbers_are_taken_where_the_error_has_none(device: SimulatedDevice) -> None:
    device.hold(3000)
    device.hold(2500)
    then = memory_then(DEVICE, "backward", between_bytes=1000 * MIB)
    assert then == Failure(
        found=DEVICE,
        phase="backward",
        used_bytes=2500 * MIB,
        free_bytes=(TOTAL_MIB - 2500) * MIB,
        limit_bytes=TOTAL_MIB * MIB,
        limit="GPU 0",
        reserved_unused_bytes=500 * MIB,
        in_use={"activations": 1500 * MIB, "other": 1000 * MIB, "kept by the allocator": 500 * MIB},
    )


def test_the_errors_own_numbers_come_first(device: SimulatedDevice) -> None:
    said = OutOfMemory(
        kind="CUDA allocator", where="device", error_type="", message="", device=1, allocated_bytes=10 * GIB,
        free_bytes=GIB, total_bytes=16 * GIB, process_bytes=12 * GIB, reserved_unused_bytes=GIB,
    )  # fmt: skip
    device.hold(100)
    then = memory_then(said, "optimizer")
    assert (then.used_bytes, then.limit, then.limit_bytes) == (10 * GIB, "GPU 1", 16 * GIB)
    assert then.free_bytes == 2 * GIB, "with what torch keeps unused"
    assert then.others_bytes == 3 * GIB
    assert then.in_use == {"other": 10 * GIB, "CUDA and libraries": GIB, "kept by the allocator": GIB}


def test_tensors_on_the_host_are_no_part_of_a_devices_memory(device: SimulatedDevice) -> None:
    device.hold(100)
    assert "parameters" not in memory_then(DEVICE, "optimizer", torch.nn.Linear(10, 10)).in_use


def test_the_numbers_are_those_of_the_device_that_the_error_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(monkeypatch, 2) as (first, second):
        first.hold(1000)
        second.hold(7000)
        then = memory_then(replace(DEVICE, device=1), "forward")
    assert (then.limit, then.used_bytes, then.free_bytes) == ("GPU 1", 7000 * MIB, (TOTAL_MIB - 7000) * MIB)


def test_torchs_cache_is_free_for_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch keeps unused, 500 MiB here, where torch asked and did not count it as used, as on MPS."""
    free, expected = {}, {}
    for name, _, error, _ in (*OUT_OF_MEMORY, *LIBRARY_MESSAGES):
        found = recognise(error)
        if found.where == "device":
            pools = found.private_pools_bytes or 0
            said = (found.allocated_bytes or 2500 * MIB) / MIB
            with simulated_device(monkeypatch) as device:
                device.hold(said + 500)
                device.hold(said)
                free[name] = memory_then(replace(found, device=0), "backward").free_bytes
            kept = 500 * MIB + pools if found.reserved_unused_bytes is None else found.reserved_unused_bytes
            counts = found.kind.endswith(OF_TORCH) and "other allocations" not in found.message
            left = int((TOTAL_MIB - said - 500) * MIB) if found.free_bytes is None else found.free_bytes
            expected[name] = pytest.approx(left + kept * counts, abs=1)
    assert free == expected
