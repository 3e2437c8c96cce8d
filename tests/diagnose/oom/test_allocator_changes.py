"""What helps where memory is free for somebody else, from the messages in which people met it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.diagnose.oom.explanation import explained
from forgather_mem.diagnose.oom.memory_in_use import memory_then
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.diagnose.oom.story import Story
from forgather_mem.telemetry.report import Change, OomReport
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.oom_messages import LIBRARY_MESSAGES

NAMED = {case.name: case.error for case in LIBRARY_MESSAGES}


def told(name: str, phase: str = "forward", unused_bytes: int = 0, **arguments: Any) -> tuple[OomReport, list[Change]]:
    found = recognise(NAMED[name])
    assert isinstance(found, OutOfMemory)
    memory = memory_then(found, phase)
    if unused_bytes:
        parts = {"used_bytes": 20 * GIB, "free_bytes": 4 * GIB, "reserved_unused_bytes": unused_bytes}
        memory = type(memory)(**parts, limit_bytes=24 * GIB, limit="GPU 0")  # type: ignore[arg-type]
    oom, changes = explained(Story(found=found, phase=phase, memory=memory), settings=RunSettings(arguments=arguments))
    return oom, list(changes)


def test_nccls_files_need_a_larger_dev_shm_not_a_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs("/dev/shm")
    shm = SimpleNamespace(f_frsize=4096, f_blocks=16384, f_bavail=1024, f_bfree=1024)
    monkeypatch.setattr(os, "statvfs", lambda path: shm if path == "/dev/shm" else real)
    oom, changes = told("NCCL, /dev/shm", phase="startup", per_device_train_batch_size=8)
    assert (oom.limit, oom.limit_bytes, oom.free_bytes) == ("/dev/shm", 64 * MIB, 4 * MIB)
    assert oom.in_use == {"files in /dev/shm": 60 * MIB}
    assert oom.why_now is not None
    assert oom.why_now.startswith("/dev/shm is full; NCCL")
    assert "--shm-size" in changes[0].text
    assert changes[1].in_script == {"NCCL_SHM_DISABLE": "1"}
    assert not any("batch" in change.text for change in changes)


def test_memory_that_cannot_be_page_locked_is_the_hosts_and_is_not_pinned() -> None:
    oom, changes = told("the thread that pins batches", phase="data", dataloader_pin_memory=True)
    assert oom.where == "host"
    assert "page-locked" in (oom.why_now or "")
    assert changes[0].set == {"dataloader_pin_memory": False}
    _, of_a_loop = told("a line that pins", phase="other")
    assert of_a_loop[0].in_script == {"pin_memory": False}


def test_a_library_beside_torch_needs_what_torch_keeps() -> None:
    _, changes = told("cuDNN 9, the device's", unused_bytes=3 * GIB, per_device_train_batch_size=8)
    cache = next(change for change in changes if "memory_fraction" in change.in_script)
    assert "3.0 GiB are kept by torch, where cuDNN can't use them" in (cache.note or "")
    assert not any("expandable" in change.text for change in changes), "its pieces are no use to cuDNN"
    _, full = told("cuDNN 9, the device's", unused_bytes=MIB, per_device_train_batch_size=8)
    assert not any(change.in_script for change in full)


def test_private_pools_are_a_part_of_their_own_with_an_advice() -> None:
    oom, changes = told("private pools", phase="optimizer", torch_compile_mode="reduce-overhead")
    assert oom.in_use["private pools"] == int(46.22 * GIB)
    assert sum(oom.in_use.values()) == pytest.approx(47.51 * GIB, rel=0.01)
    graphs = next(change for change in changes if change.set.get("torch_compile_mode"))
    assert "46.2 GiB are in private pools" in (graphs.note or "")
    _, of_a_script = told("private pools", phase="optimizer")
    assert any("torch.compile(mode='default')" in change.text for change in of_a_script)


def test_in_a_container_the_neighbours_share_is_known() -> None:
    oom, _ = told("two in a container: only one can hold what torch has allocated")
    assert oom.others_bytes == pytest.approx(344 * MIB, abs=30 * MIB)


def test_the_allocators_settings_are_read_from_each_of_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:128")
    conf = settings_of(SimpleNamespace()).allocator_conf
    assert conf == "max_split_size_mb:128"
    found = OutOfMemory(kind="HIP allocator", where="device", error_type="", message="", requested_bytes=GIB)
    memory = memory_then(found, "forward")
    memory = type(memory)(used_bytes=20 * GIB, free_bytes=4 * GIB, reserved_unused_bytes=3 * GIB)
    _, changes = explained(
        Story(found=found, phase="forward", memory=memory), settings=RunSettings(allocator_conf=conf)
    )
    value = "max_split_size_mb:128,expandable_segments:True"
    assert any(change.in_script == {"PYTORCH_HIP_ALLOC_CONF": value} for change in changes)
