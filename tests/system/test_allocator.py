"""What differs between accelerators stands in one file, and all of it is asked through `Allocator`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import forgather_mem
from forgather_mem import attach
from forgather_mem.page.data import run_data
from forgather_mem.page.readings import read_readings
from forgather_mem.system import allocator
from forgather_mem.system.allocator import (
    Device,
    allocator_of,
    current_allocator,
    devices,
    driver_memory,
    gauge,
    used_allocators,
)
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_schema import from_dict
from forgather_mem.units import GIB, MIB
from tests.simulated_device import ALL, SimulatedDevice, simulated_devices
from tests.training import make_trainer

ROOT = Path(forgather_mem.__file__).parent
KINDS = {"cuda", "xpu", "mps", "npu", "mlu", "musa", "accelerator"}


@pytest.mark.slow
def test_nowhere_else_is_an_accelerator_of_torch_named() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        if path.name == "allocator.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_torch = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch"
            if is_torch and node.attr in KINDS:  # type: ignore[attr-defined]
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert found == []


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch answers as if it were built for an Intel device with 48 GiB, the second of two, that is in use."""

    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"Max 1100 ({index})", total_memory=48 * GIB)

    def stats(index: int) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"current": 3 * GIB, "peak": 5 * GIB}}}

    answers: tuple[tuple[Any, str, Any], ...] = (
        (torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu")),
        (torch.accelerator, "device_count", lambda: 2),
        (torch.xpu, "is_initialized", lambda: True),
        (torch.xpu, "current_device", lambda: 1),
        (torch.xpu, "get_device_properties", properties),
        (torch.xpu, "memory_stats_as_nested_dict", stats),
        (torch.xpu, "mem_get_info", lambda index: (40 * GIB, 48 * GIB)),
    )
    caches = (allocator._accelerator_kind, allocator._allocator)
    with monkeypatch.context() as patch:
        for owner, name, answer in answers:
            patch.setattr(owner, name, answer, raising=False)
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("xpu")
def test_an_accelerator_that_is_not_nvidias_has_its_name_and_size() -> None:
    found = current_allocator()
    assert (found.kind, found.index) == ("xpu", 1)
    assert found.device() == Device("xpu:1", "Max 1100 (1)", 48 * GIB)
    assert gauge(found.stats(), "allocated_bytes", "peak") == 5 * GIB
    assert found.history is None
    assert [device.label for device in devices()] == ["xpu:0", "xpu:1"]


def test_without_an_accelerator_there_are_no_devices() -> None:
    assert devices() == []


def test_used_are_the_current_device_and_those_on_which_it_holds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(monkeypatch, 4) as simulated:
        simulated[2].hold(10)
        assert [found.index for found in used_allocators()] == [0, 2]
        indices = {asked: found.index for asked in (None, 0, 1, 2) if (found := allocator_of(asked)) is not None}
        assert indices == {None: 0, 0: 0, 1: 0, 2: 2}
        assert not any(device.woken for device in simulated)
    assert used_allocators() == []


def test_a_kind_that_does_not_answer_for_unused_devices_is_asked_for_the_current_one_only(
    xpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [found.index for found in used_allocators()] == [1], "the other one has reserved nothing"
    monkeypatch.setattr(allocator, "_ANSWERS_FOR_UNUSED", ())
    assert [found.index for found in used_allocators()] == [1]


def test_report_page_and_log_have_each_device_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_devices(monkeypatch, 3) as simulated:
        simulated[0].hold(100)
        simulated[2].hold(600)
        simulated[2].hold(200)
        trainer = make_trainer(tmp_path)
        watching = attach(trainer)
        trainer.train()
        assert not simulated[1].woken
    report = watching.report()
    assert [(used["index"], used["name"], used["total_bytes"]) for used in report["device"]] == [
        (0, "Simulated 8", 8 * GIB),
        (2, "Simulated 8", 8 * GIB),
    ]
    assert [used["allocated_end_bytes"] for used in report["device"]] == [100 * MIB, 200 * MIB]
    assert report["device"][1]["peak_reserved_bytes"] == 600 * MIB
    assert "GPU 2" in str(report)
    folder = Path(report["run"]["folder"])
    readings = read_readings(folder)
    assert readings.column("device/allocated_bytes") is not None
    assert set(readings.column("device2/allocated_bytes")) == {200 * MIB}
    shown = run_data(from_dict(RunReport, report), folder)["stacks"]
    assert [stack["title"] for stack in shown] == ["Memory of GPU 0", "Memory of GPU 2", "Memory of the host"]


def test_after_a_question_has_failed_none_is_asked_of_whatever_was_at_hand(device: SimulatedDevice) -> None:
    device.hold(100)
    found = current_allocator()
    device.broken = ALL
    for _ in range(2):
        assert (found.stats(), driver_memory(found)) == ({}, None)
        assert (current_allocator(), used_allocators(), devices()) == (None, [], [])
    assert device.failures == 1


@pytest.mark.parametrize("text", ["CUDA error: out of memory\nas", "CUDA error: operation not supported", "x"])
def test_a_question_that_has_no_answer_is_no_failure_of_the_device(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def fails(index: int) -> tuple[int, int]:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    device.hold(100)
    found = current_allocator()
    assert driver_memory(found) is None
    assert gauge(found.stats(), "allocated_bytes") == 100 * MIB
