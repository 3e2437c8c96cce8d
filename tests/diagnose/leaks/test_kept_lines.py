"""A look that goes far: what no name leads to, and which line made what grows. Real memory."""

import ctypes
import importlib
import queue
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from forgather_mem.diagnose.leaks.heap_diff import CloserLook
from forgather_mem.diagnose.leaks.kept_lines import KeptLines
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.reporting.problems import _suspect_lines
from forgather_mem.telemetry.report import NOT_JUDGED

pytestmark = pytest.mark.alone(forked=True)

RATE = 40_000.0


def suspects_of(call: Callable[[], object], *, far: bool = True, rate: float = RATE) -> list[Suspect]:
    """What is suspected after 16 calls, the look beginning after four."""
    for _ in range(4):
        call()
    look = CloserLook(4, far=far)
    for _ in range(5, 17):
        call()
    found = look.finish(16, rate)
    assert sys.gettrace() is None
    return found


def test_what_differs_by_a_key_is_told_as_one() -> None:
    by_name: dict[str, list[bytes]] = {name: [] for name in "abcdefghij"}
    (one, *_) = suspects_of(lambda: [rows.append(bytes(3_000)) for rows in by_name.values()], far=False)
    assert str(one.held_by).endswith("test_what_differs_by_a_key_is_told_as_one.<locals>.<lambda>[...]")
    assert one.bytes_per_step == pytest.approx(30_000, rel=0.1)


class Loader:
    """An iterator that keeps what it has given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Any:
        self.seen.append(np.ones(5_000))
        return self.seen[-1]


def given() -> Iterator[int]:
    kept: list[Any] = []
    while True:
        kept.extend(bytes(5_000))  # small numbers take only their places
        yield len(kept)


@pytest.mark.parametrize(
    ("made", "holder", "source"),
    [
        (Loader, "Loader.seen", "self.seen.append(np.ones(5_000))"),
        (given, "local 'kept' of given", "kept.extend(bytes(5_000))  # small numbers take only their places"),
    ],
)
def test_what_only_a_for_statement_holds_is_found(made: Any, holder: str, source: str) -> None:
    """Its iterator is on the evaluation stack: no variable leads to it."""

    def looks() -> list[Suspect]:
        look = None
        for number, _ in enumerate(made(), 1):
            if number == 4:
                look = CloserLook(4, far=True)
            if number == 16:
                return look.finish(16, RATE)
        raise AssertionError

    (top, *_) = looks()
    assert str(top.held_by).startswith(holder)
    assert top.source_line == source
    assert top.bytes_per_step == pytest.approx(RATE, rel=0.1)


def test_the_list_that_a_comprehension_fills_is_found_without_a_name() -> None:
    """It is on the evaluation stack alone."""
    looks: list[CloserLook] = []
    suspects: list[Suspect] = []

    def step(number: int) -> torch.Tensor:
        if number == 4:
            looks.append(CloserLook(4, far=True))
        if number == 16:
            suspects.extend(looks[0].finish(16, RATE))
        return torch.ones(10_000)

    assert len([step(number) for number in range(20)]) == 20
    assert (suspects[0].held_by, suspects[0].type) == ("a list that no variable holds", "list")
    assert suspects[0].source_line == "return torch.ones(10_000)"


class Frames:
    def __init__(self) -> None:
        self.out: Any = None

    def get(self) -> Any:
        if self.out is None:
            self.out = np.zeros(5_000)
        return self.out


OLD = deque(Frames() for _ in range(5_000))
NEXT = iter(range(1_000, 2_000))


def test_what_grows_in_no_container_has_the_line_that_made_it() -> None:
    (top, *others) = suspects_of(lambda: OLD[next(NEXT)].get())
    assert (top.kind, top.held_by, others) == ("made", None, [])
    assert top.source_line == "self.out = np.zeros(5_000)"
    assert "holder not found" in "\n".join(_suspect_lines(top.reported(), 80, NOT_JUDGED))


class Keeps:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def reset(self) -> None:
        self.kept.append(torch.ones(2**20))

    def step(self, flag: bool = False) -> None:
        if flag:
            self.kept.append("x")
        else:
            self.kept.append(torch.zeros(10_000))

    def step_later(self) -> None:
        row = torch.zeros(10_000)
        self.kept.append(row)


@pytest.mark.parametrize(
    ("name", "source"), [("step", "self.kept.append(torch.zeros(10_000))"), ("step_later", "row = torch.zeros(10_000)")]
)
def test_of_several_lines_that_add_to_a_holder_the_one_that_ran_is_told(name: str, source: str) -> None:
    keeps = Keeps()
    (top, *_) = suspects_of(getattr(keeps, name))
    assert (top.held_by, top.source_line) == ("Keeps.kept", source)
    (top, *_) = suspects_of(getattr(keeps, name), far=False)
    assert (top.held_by, top.allocated_at) == ("Keeps.kept", None), "none is told that may be wrong"


def test_what_a_library_keeps_has_the_line_that_made_it() -> None:
    outbox: queue.Queue[Any] = queue.Queue()
    (top, *_) = suspects_of(lambda: outbox.put(np.ones(5_000)))
    assert (str(top.held_by)[:17], top.kind) == ("local 'outbox' of", "queue")
    assert "outbox.put(np.ones(5_000))" in top.source_line


def test_a_tensor_has_the_line_that_made_it_where_no_source_names_its_holder() -> None:
    optimizer = torch.optim.SGD([torch.ones(1)])

    def step() -> None:
        optimizer.state[torch.ones(1)] = {"average": torch.zeros(10_000)}

    (top, *_) = suspects_of(step)
    assert (top.held_by, top.kind) == ("SGD.state", "optimizer state")
    assert top.source_line == 'optimizer.state[torch.ones(1)] = {"average": torch.zeros(10_000)}'


LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p


def step(size: int, freed: bool) -> None:
    block = bytearray(1_000_000)
    at = LIBC.malloc(ctypes.c_size_t(size))
    del block
    if freed:
        LIBC.free(ctypes.c_void_p(at))


@pytest.mark.parametrize("every", [1, 2])
def test_the_statement_that_keeps_it_is_told_not_one_that_is_given_back(every: int) -> None:
    lines = KeptLines()
    for number in range(12):
        step(40_000, number % every > 0)
    lines.close()
    found, other = lines.line_of(12 / every * 40_000), lines.line_of(12 * 1_000_000)
    assert (found, other) == ((__file__, step.__code__.co_firstlineno + 2), None)
    assert sys.gettrace() is None


def test_what_c_code_keeps_is_told_apart_from_an_array_that_another_line_gives_back() -> None:
    last = [np.ones(5_000)]

    def resample() -> None:
        LIBC.malloc(ctypes.c_size_t(40_000))
        made = np.ones(5_000)
        last[0] = made

    (top, *_) = suspects_of(resample)
    assert (top.source_line, KeptLines.records) == ("LIBC.malloc(ctypes.c_size_t(40_000))", False)
    known, lines = importlib.import_module("tracemalloc"), KeptLines()  # now it is the script's
    assert (known.is_tracing(), KeptLines.records) == (False, False)
    lines.close()


def test_where_a_debugger_traces_it_is_left_alone() -> None:
    def debugger(*_: object) -> None:
        return None

    sys.settrace(debugger)
    lines = KeptLines()
    step(4_000, False)
    lines.close()
    traced = sys.gettrace()
    sys.settrace(None)
    assert (traced, lines.line_of(4_000)) == (debugger, None)
