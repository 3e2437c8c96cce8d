import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.reclaim.retry import retry_on_oom
from tests.reclaim.things import Thing
from tests.simulated_device import simulated_device

ROOT = Path(__file__).parents[2]
ROOM_MIB, MIB_PER_ROW = 160, 16  # nine rows fit, ten do not


def in_a_child(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    full = [
        {"limit": "AS", "limit_mib": ROOM_MIB, "mib_per_row": MIB_PER_ROW, "starting_batch_size": 64} | case
        for case in cases
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.reclaim.retry_child", json.dumps(full)],
        cwd=ROOT,
        env={
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": "1048576",
        },  # rows come from the system, never from the heap's holes
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def children() -> list[dict[str, Any]]:
    return in_a_child(
        {"helper": "ours", "raises": "torch"}, {"helper": "ours", "raises": "numpy", "limit": "DATA"},
        {"helper": "ours", "raises": "python"}, {"helper": "ours", "raises": "torch", "mib_per_row": 800},
        {"helper": "accelerate", "raises": "torch"}, {"helper": "accelerate", "raises": "numpy"},
    )  # fmt: skip


@pytest.mark.parametrize("case", [0, 1, 2])
def test_nothing_of_the_failed_tries_is_alive_when_the_next_begins(children: list[dict[str, Any]], case: int) -> None:
    done = children[case]
    assert len(done["tried"]) >= 3
    assert done["alive"] == [0] * len(done["tried"])


def test_accelerates_helper_keeps_objects_and_knows_no_memory_error(children: list[dict[str, Any]]) -> None:
    torch_error, numpy_error = children[4:]
    assert sum(torch_error["alive"]) > 0
    assert numpy_error["tried"] == [64]
    assert numpy_error["result"].startswith("MemoryError")


def test_the_batch_shrinks_by_what_was_wanted_and_free(children: list[dict[str, Any]]) -> None:
    by_numbers, exact_too, blindly, _, accelerate, _ = children
    for done in (by_numbers, exact_too):
        assert done["result"] == f"fits with {done['tried'][-1]}"
        # Freed blocks of the heap come on top of the room; on Python 3.14 there are more of them
        assert 8 <= done["tried"][-1] <= (12 if sys.version_info < (3, 14) else 14)
        assert len(done["tried"]) <= 6
        # the first allocation failed: an eighth of 64 rows of 16 MiB, where 160 MiB were free
        assert done["tried"][1] == pytest.approx(64 * 0.97 * 160 / 128 * 0.5, rel=0.2)
    assert blindly["tried"] == [64, 32, 16, 8]  # Python's own MemoryError has no numbers
    assert len(accelerate["tried"]) > 2 * len(by_numbers["tried"])


def test_when_the_floor_does_not_fit_the_users_own_error_leaves_the_call(children: list[dict[str, Any]]) -> None:
    done = children[3]
    assert done["tried"][-1] == 1
    assert "DefaultCPUAllocator: can't allocate memory" in done["result"]
    assert "ran out of memory with every batch size tried: 64, " in done["result"]


def run_out() -> None:
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)"
    )


def test_each_try_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    @retry_on_oom(starting_batch_size=8)
    def train(batch_size: int) -> int:
        if batch_size > 3:
            run_out()
        return batch_size

    with caplog.at_level(logging.WARNING):
        assert train() == 3
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(" ")[2] for line in lines] == ["6", "4", "3"]
    assert ".train: batch size 8 does not fit, no host memory was given (CPU allocator), wanted 4.0 GiB" in lines[0]
    assert "; trying " in lines[0]


def test_other_errors_pass_at_once_and_untouched() -> None:
    calls = []

    @retry_on_oom
    def train(batch_size: int) -> None:
        local = "kept for the debugger"
        calls.append(batch_size)
        raise KeyError(local)

    with pytest.raises(KeyError) as raised:
        train()
    assert calls == [64]
    assert raised.traceback[-1].frame.f_locals["local"] == "kept for the debugger"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_while_an_out_of_memory_error_is_handled_is_no_reason_to_try_again(stop: type[BaseException]) -> None:
    @retry_on_oom
    def train(batch_size: int) -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise stop  # noqa: B904

    with pytest.raises(stop):
        train()


def test_an_error_of_the_caller_keeps_its_frames() -> None:
    def fail() -> None:
        local = Thing()
        alive.append(weakref.ref(local))
        raise ValueError

    @retry_on_oom(starting_batch_size=2)
    def train(batch_size: int) -> int:
        if batch_size == 2:
            raise MemoryError
        return batch_size

    alive: list[weakref.ref[Thing]] = []
    try:
        fail()
    except ValueError:
        assert train() == 1
        gc.collect()
        assert alive[0]() is not None


def test_a_device_that_is_full_shrinks_the_batch_by_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    with simulated_device(monkeypatch) as device:
        device.hold(1000)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (0, 80 * 2**30))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

        @retry_on_oom(starting_batch_size=100)
        def train(batch_size: int) -> int:
            tried.append(batch_size)
            if batch_size > 40:
                device.hold(1000 + 600)  # what this call took before it failed
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 1400.00 MiB. GPU 0 has a total capacity of 80.00 GiB of "
                    "which 200.00 MiB is free."
                )
            return batch_size

        assert train() == 38
    assert tried == [100, int(100 * 0.97 * (600 + 200) / (600 + 1400))] == [100, 38]


def test_every_call_begins_anew_and_names_and_arguments_are_the_functions_own() -> None:
    tried = []

    @retry_on_oom(starting_batch_size=4, floor=2)
    def train(batch_size: int, name: str, *, scale: int = 1) -> tuple[int, str, int]:
        """Trains."""
        tried.append(batch_size)
        if batch_size > 2:
            raise MemoryError
        return batch_size, name, scale

    assert train("a", scale=3) == (2, "a", 3)
    assert train("b") == (2, "b", 1)
    assert tried == [4, 2, 4, 2]
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


def test_who_passes_the_batch_size_himself_is_told() -> None:
    @retry_on_oom
    def train(batch_size: int, model: str) -> None: ...

    with pytest.raises(TypeError, match="train: too many positional arguments; retry_on_oom passes the batch size"):
        train(64, "model")  # type: ignore[arg-type, call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'model'"):
        train()  # type: ignore[call-arg]


def test_what_can_not_work_is_refused_when_it_is_decorated() -> None:
    def numbers(batch_size: int) -> Iterator[int]:
        yield batch_size

    async def number(batch_size: int) -> int:
        return batch_size

    for function in (numbers, number):
        with pytest.raises(TypeError, match=rf"{function.__name__} returns before it runs"):
            retry_on_oom(function)
    with pytest.raises(TypeError, match="5 is no function"):
        retry_on_oom(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Job\.train is a method, .* decorate a function inside the method"):

        class Job:
            @retry_on_oom  # type: ignore[arg-type]
            def train(self, batch_size: int) -> int:
                return batch_size

    for arguments, message in (
        ({"starting_batch_size": 0}, r"starting_batch_size=0\): give a whole number of 1 or more"),
        ({"floor": 2.5}, r"retry_on_oom\(floor=2.5\)"),
        ({"starting_batch_size": 4, "floor": 8}, "the floor is above"),
    ):
        with pytest.raises(ValueError, match=message):
            retry_on_oom(**arguments)  # type: ignore[call-overload]
