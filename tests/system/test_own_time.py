"""Our own time: a wait for a disk counts, a wait for a busy processor does not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from forgather_mem.system.time_budget import SHORT_S, OwnTime


@pytest.fixture
def beside_others_on_one_processor() -> Iterator[None]:
    """This thread shares its processor with three that never rest."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    yield
    for process in busy:
        process.kill()
        process.wait()
    os.sched_setaffinity(0, before)


def work(cpu_s: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_s:
        pass


@pytest.mark.usefixtures("beside_others_on_one_processor")
def test_a_wait_for_a_busy_processor_is_not_ours() -> None:
    own, of_a_phase = OwnTime(), OwnTime()
    began, began_s = own.now(), time.perf_counter()
    work(0.3)
    own.add(began)
    took_s = time.perf_counter() - began_s
    of_a_phase.spent_s, of_a_phase.long_s = SHORT_S, took_s - SHORT_S
    assert took_s > 0.6, "the others were not busy"
    assert own.take()[0] == pytest.approx(0.3, rel=0.2)
    assert of_a_phase.take()[0] == pytest.approx(0.3, rel=0.2)


def test_a_wait_for_anything_else_is_ours() -> None:
    own = OwnTime()
    began = own.now()
    time.sleep(0.05)
    own.add(began, reading=True)
    all_s, reading_s = own.take()
    assert all_s == reading_s >= 0.049
    own.long_s = 0.5
    assert own.take()[0] > 0.4
    assert own.take() == (0.0, 0.0)


def test_a_kernel_that_does_not_tell_of_waits_leaves_the_time_as_it_is() -> None:
    own = OwnTime()
    own._file.path = "/proc/thread-self/no_such_file"
    own.close()
    began = own.now()
    time.sleep(0.01)
    own.add(began)
    assert own.take()[0] >= 0.01
