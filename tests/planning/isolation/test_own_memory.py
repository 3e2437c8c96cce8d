"""What a forked process writes into memory that it shares with its parent stays in it."""

import faulthandler
import mmap
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy
import pytest
import torch

from forgather_mem.planning.isolation.child import have_own_memory
from forgather_mem.units import MIB

_NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=4096)
    yield memory
    memory.close()
    memory.unlink()


def code_of_fork(act: Callable[[], object], as_nobody: bool) -> int:
    """0 where the act gives something true in a fork with its own memory; with the rights of a user, not of root."""
    pid = os.fork()
    if not pid:
        code = 2
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()
            if as_nobody and os.getuid() == 0:
                os.setuid(_NOBODY)
            have_own_memory()
            code = int(not act())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("as_nobody", [False, True])
def test_files_tensors_locks_and_counters_are_its_own(tmp_path: Path, shared: SharedMemory, as_nobody: bool) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(9000))
    rows = numpy.memmap(path, mode="r+", dtype="u1")
    rest = numpy.memmap(path, mode="r+", dtype="u1", offset=4096)
    deleted = tmp_path / "deleted"
    deleted.write_bytes(bytes(9))
    of_deleted = numpy.memmap(deleted, mode="r+", dtype="u1")
    deleted.unlink()
    tensor, unnamed = torch.arange(4).share_memory_(), mmap.mmap(-1, 4096)
    unnamed[:2] = b"is"
    context = multiprocessing.get_context("fork")
    lock, counter = context.Lock(), context.Value("i", 3)
    shared.buf[0] = 5

    def found() -> list[object]:
        free = lock.acquire(block=False)
        if free:
            lock.release()
        held = [rows[0], rest[1], of_deleted[2], shared.buf[0], counter.value]
        return [*map(int, held), tensor.tolist(), unnamed[:2], free]

    def acts() -> bool:
        if found() != before:
            return False
        rows[0] = rest[1] = of_deleted[2] = shared.buf[0] = counter.value = tensor[0] = 7
        unnamed[:2] = b"no"
        lock.acquire()
        return found() == [7, 7, 7, 7, 7, [7, 1, 2, 3], b"no", False]

    before = found()
    assert before == [0, 0, 0, 5, 3, [0, 1, 2, 3], b"is", True]
    assert code_of_fork(acts, as_nobody) == 0
    assert found() == before
    assert path.read_bytes() == bytes(9000)


def test_much_that_can_only_be_copied_is_read_and_who_writes_there_dies() -> None:
    if os.getuid():
        pytest.skip("other users can't try what root may do")
    much = mmap.mmap(-1, 65 * MIB)
    much[-1] = 5

    def writes() -> None:
        much[0] = 1

    assert code_of_fork(lambda: much[-1] == 5, as_nobody=True) == 0
    assert code_of_fork(writes, as_nobody=True) == -signal.SIGSEGV
    assert (much[0], much[-1]) == (0, 5)
    much.close()
