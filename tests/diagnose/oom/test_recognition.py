import gc
import os
import pickle
import re
import weakref
from types import SimpleNamespace

import pytest
import torch

from forgather_mem.diagnose.oom.messages import SHAPES, MessageShape
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.heap.failed_frames import MAX_ERRORS, chain
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.oom_messages import (
    ASYNCHRONOUS,
    LIBRARY_MESSAGES,
    OTHERS,
    OUT_OF_MEMORY,
    OutOfMemoryCase,
    raised,
)
from tests.simulated_device import simulated_device


@pytest.mark.parametrize("case", [*OUT_OF_MEMORY, *LIBRARY_MESSAGES], ids=lambda case: case.name)
def test_an_out_of_memory_error_is_recognised_with_its_numbers(case: OutOfMemoryCase) -> None:
    found = recognise(case.error)
    assert {name: getattr(found, name) for name in case.expected} == case.expected


@pytest.mark.parametrize("shape", [one for one in SHAPES if one.where is None], ids=lambda shape: shape.kind)
def test_a_library_that_works_on_both_means_the_device_where_one_is_in_use(
    shape: MessageShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case for case in LIBRARY_MESSAGES + OUT_OF_MEMORY if re.search(shape.pattern, str(case.error))]
    assert {str(recognise(case.error)).partition(" (")[0] for case in cases} == {"no host memory was given"}
    with simulated_device(monkeypatch) as device:
        device.hold(100)
        assert {str(recognise(case.error)).partition(" (")[0] for case in cases} == {"the device is out of memory"}


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: f"{type(error).__name__}-{str(error)[:40]}")
def test_another_error_is_not_taken_for_one(error: BaseException) -> None:
    assert recognise(error) is None


def test_the_lists_are_as_long_as_promised() -> None:
    assert len({recognise(case.error).kind for case in OUT_OF_MEMORY}) >= 16  # type: ignore[union-attr]
    assert len(OTHERS) >= 30


def test_words_that_have_other_causes_too_count_only_on_a_full_device(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    for free_bytes, kind in ((30 * MIB, "cuBLAS"), (20 * GIB, None)):
        with simulated_device(monkeypatch) as device:
            device.hold(100)
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index, free=free_bytes: (free, 80 * GIB))
            found = recognise(error)
        assert (found and found.kind) == kind


@pytest.mark.parametrize(
    "words",
    [
        "Failed to CUDA calloc async 1920 bytes",
        "Error while creating shared memory segment /dev/shm/nccl-Le (size 9637888)",
    ],
)
def test_words_without_a_reason_do_not_count_where_there_is_room(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    error = RuntimeError(f"NCCL error in: NCCLUtils.hpp:268, unhandled system error\nLast error:\n{words}")
    real = os.statvfs("/dev/shm")
    for free_bytes, is_found in ((MIB, True), (20 * GIB, False)):
        shm = SimpleNamespace(f_frsize=1, f_blocks=64 * GIB, f_bavail=free_bytes, f_bfree=free_bytes)
        with simulated_device(monkeypatch) as device, monkeypatch.context() as patch:
            device.hold(100)
            patch.setattr(torch.cuda, "mem_get_info", lambda index, free=free_bytes: (free, 80 * GIB))
            patch.setattr(os, "statvfs", lambda path, shm=shm: shm if path == "/dev/shm" else real)
            assert (recognise(error) is not None) == is_found


def test_a_device_that_is_out_of_memory_is_not_taken_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def upload() -> None:
        pin_memory = True
        if pin_memory:
            raise getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: out of memory{ASYNCHRONOUS}")

    found = recognise(raised(upload))
    assert (found.kind, found.where) == ("driver", "device")


def test_what_is_found_is_plain_data_and_holds_nothing_of_the_error() -> None:
    class Big:
        pass

    def run_out() -> None:
        big = Big()
        alive.append(weakref.ref(big))
        raise torch.OutOfMemoryError(OUT_OF_MEMORY[0].error.args[0])

    alive: list[weakref.ref[Big]] = []
    error: BaseException | None = raised(run_out)
    found = recognise(error)
    assert alive[0]() is not None  # the traceback holds the frame
    error = None
    gc.collect()
    assert alive[0]() is None
    assert isinstance(found, OutOfMemory)
    assert pickle.loads(pickle.dumps(found)) == found
    assert str(found) == "GPU 0 is out of memory (CUDA allocator), wanted 226.0 MiB, free 210.4 MiB of 15.7 GiB"


def test_a_chain_that_bites_its_tail_and_a_huge_group_end() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__context__, second.__context__ = second, first
    assert recognise(first) is None
    group = ExceptionGroup("tasks", [ValueError(str(number)) for number in range(10_000)])
    assert sum(1 for _ in chain(group)) == MAX_ERRORS
    assert recognise(group) is None


def test_a_message_that_can_not_be_made_is_no_failure() -> None:
    class NoWords(MemoryError):
        def __str__(self) -> str:
            raise MemoryError

    found = recognise(NoWords())
    assert (found.kind, found.message) == ("MemoryError", "NoWords")
    ruled = recognise(RuntimeError("-----\n- Memory not enough:\n-----\nCUDA out of memory."))
    assert ruled.message == "- Memory not enough:"
