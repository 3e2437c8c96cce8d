"""Which line makes a container longer, and which brings memory that stays: real lines, real memory."""

from __future__ import annotations

import ctypes
import linecache
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from forgather_mem.diagnose.leaks.heap_diff import CloserLook
from forgather_mem.diagnose.leaks.line_look import LineLook
from forgather_mem.diagnose.leaks.sizes import native_bytes, native_free_bytes
from forgather_mem.diagnose.leaks.suspects import Suspect, graph_cycle_suspect, native_suspect
from forgather_mem.heap.object_size import array_bytes
from tests.heap.test_reachable import Holder, suspects_after


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier test of this process may have compiled something: then no line is looked at."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    if counters is not None:
        monkeypatch.delitem(counters, "frames", raising=False)


MALLOC = ctypes.CDLL(None).malloc
MALLOC.restype, MALLOC.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
NUM_BYTES = 400_000
pytestmark = [
    pytest.mark.alone(forked=True),
    pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces the lines"),
]


def text_of(line: tuple[str, int] | None) -> str:
    return linecache.getline(*line).strip() if line is not None else ""


def watched(look: LineLook, step: Callable[[int], object], steps: int = 12) -> LineLook:
    assert look.start()
    try:
        for number in range(steps):
            step(number)
    finally:
        look.stop()
    return look


class Net(torch.nn.Module):
    """A forward pass whose memory the backward pass gives back, as much as the data set's row keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(NUM_BYTES // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.weight * x
        return wide.sum()


class Rows:
    def __getitem__(self, index: int) -> torch.Tensor:
        kept = MALLOC(NUM_BYTES)
        ctypes.memset(kept, 1, NUM_BYTES)
        return torch.ones(1)


@pytest.mark.parametrize("rows_first", [True, False])
def test_a_line_whose_memory_the_backward_pass_gives_back_is_not_the_leak(rows_first: bool) -> None:
    net, rows = Net(), Rows()

    def step(number: int) -> None:
        x = rows[number] if rows_first else torch.ones(1)
        loss = net(x)
        loss.backward()
        net.zero_grad()
        if not rows_first:
            rows[number]

    step(0)
    found = watched(LineLook(given_out=native_bytes), step).native_line(NUM_BYTES)
    assert found is not None
    code, line = found
    assert (code.co_qualname, text_of((code.co_filename, line))) == (
        "Rows.__getitem__", "kept = MALLOC(NUM_BYTES)",
    )  # fmt: skip


@pytest.mark.fresh
@pytest.mark.usefixtures("unfrozen")
def test_arrays_that_are_given_back_later_in_the_step_are_not_the_leak() -> None:
    rows = Rows()

    def step(number: int) -> None:
        batch = np.ones(NUM_BYTES // 8)  # as much as leaks, and before it
        rows[number]
        del batch

    step(0)
    found = watched(LineLook(given_out=native_bytes), step).native_line(NUM_BYTES, 12 * NUM_BYTES)
    assert found is not None
    assert text_of((found[0].co_filename, found[1])) == "kept = MALLOC(NUM_BYTES)"


def test_a_graph_that_its_gradients_keep_is_named_by_the_call_that_makes_it() -> None:
    suspect = graph_cycle_suspect(1e5)
    assert suspect is not None
    assert suspect.held_by == "the graph of backward(create_graph=True)"
    assert "create_graph=True" in suspect.source_line


def test_what_only_one_step_holds_is_nobodys() -> None:
    net = Net()

    def step(number: int) -> None:
        net(torch.ones(1)).backward()
        net.zero_grad()

    step(0)
    assert watched(LineLook(given_out=native_bytes), step).native_line(NUM_BYTES) is None


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_graph_of_gradients_that_is_never_given_back_has_the_line_that_makes_it() -> None:
    net = Net()

    def step(number: int) -> None:
        loss = net.weight.sin().exp().sum()
        loss.backward(create_graph=True)  # and the gradients are never reset

    step(0)
    found = watched(LineLook(given_out=native_bytes), step).native_line(NUM_BYTES)
    assert found is not None
    assert text_of((found[0].co_filename, found[1])).startswith("loss.backward(create_graph=True)")


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_of_gradients_that_are_reset_are_no_leak() -> None:
    net = Net()

    def step(number: int) -> None:
        loss = net(torch.ones(1)) ** 2
        loss.backward(create_graph=True)
        net.zero_grad()

    step(0)
    assert watched(LineLook(given_out=native_bytes), step).native_line(NUM_BYTES) is None


def test_kernels_that_onednn_caches_for_each_shape_are_not_the_activations() -> None:
    """Each new width makes a kernel; what the activations take is given back, however much that is."""
    layer = torch.nn.Conv1d(8, 8, 3)

    def step(number: int) -> None:
        out = layer(torch.ones(4, 8, 2_000 + number))
        out.sum().backward()
        layer.zero_grad()

    step(0)
    look = watched(LineLook(given_out=native_bytes), step)
    found = look.native_line(NUM_BYTES)
    assert found is None or "sum()" not in text_of((found[0].co_filename, found[1]))


def test_pictures_and_buffers_of_c_are_as_large_as_their_memory() -> None:
    assert array_bytes(Image.new("RGB", (300, 200))) == 4 * 300 * 200
    assert array_bytes(Image.new("L", (300, 200))) == 300 * 200
    assert array_bytes(ctypes.create_string_buffer(5_000)) == 5_000
    holder = Holder()
    (top, *_) = suspects_after(lambda step: holder.kept.append(Image.new("RGB", (300, 200))))
    assert (top.held_by, round(top.bytes_per_step, -4)) == ("Holder.kept", 240_000)
    (top, *_) = suspects_after(lambda step: holder.kept.append((ctypes.c_double * 5_000)()))
    assert (top.held_by, round(top.bytes_per_step, -4)) == ("Holder.kept", 40_000)


def test_malloc_trim_is_advised_only_where_much_is_free() -> None:
    blocks = [torch.ones(25_000) for _ in range(1_000)]  # of the heap, below the size that is mapped
    ends = blocks[::10]
    if native_free_bytes() < 64 * 2**20:
        assert "malloc_trim" not in str(native_suspect(None, 0, 1e6).cure)
    blocks.clear()
    assert native_free_bytes() > 64 * 2**20
    assert "are free: malloc_trim gives them back" in str(native_suspect(None, 0, 1e6).cure)
    assert ends


def test_the_line_that_makes_a_container_longer_is_seen_wherever_it_is_called_from() -> None:
    layer, kept, library = torch.nn.Linear(2, 2), [], []  # type: ignore[var-annotated]

    def helper(pool: list[int]) -> None:
        size = len(pool)
        pool.append(size)

    def step(number: int) -> None:
        helper(kept)
        helper([])
        layer.register_forward_hook(lambda *_: None)
        list(map(library.append, [number]))

    look = watched(LineLook([kept, layer._forward_hooks, library]), step)
    assert text_of(look.line_of(0)) == "pool.append(size)"
    assert text_of(look.line_of(1)) == "layer.register_forward_hook(lambda *_: None)"
    assert text_of(look.line_of(2)) == "list(map(library.append, [number]))"
    assert look.has_seen_all()
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None


def test_a_loop_that_runs_already_is_watched() -> None:
    kept: list[int] = []
    look = LineLook([kept])
    assert look.start()
    for number in range(5):
        kept.append(number)
    look.stop()
    assert text_of(look.line_of(0)) == "kept.append(number)"


def test_functions_by_which_nothing_grows_are_followed_no_longer() -> None:
    kept: list[int] = []

    def dull() -> int:
        total = 0
        for number in range(500):
            total += number
        return total

    look = LineLook([kept])
    watched(look, lambda step: dull(), steps=30)
    assert sum(look._dull.values()) < 2_000, "not 30 times 1 000 lines"


class Two:
    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def rarely(self, x: torch.Tensor) -> None:
        self.kept.append(x)

    def always(self, x: torch.Tensor) -> None:
        self.kept.insert(0, x)


def looked_at(two: Two, step: Callable[[int], Any]) -> Suspect:
    look = CloserLook(0)
    for number in range(10):
        step(number)
    (top, *_) = look.finish(10, 20_000.0)
    assert look.open_window(nothing_found=False)
    for number in range(4):
        step(number)
    assert look.window_told()
    look.close_window(20_000.0, 1)
    return top


def test_of_two_lines_that_add_the_one_that_is_seen_to_is_told() -> None:
    two = Two()
    top = looked_at(two, lambda step: two.always(torch.zeros(5_000)))
    assert (top.held_by, top.source_line) == ("Two.kept", "self.kept.insert(0, x)")


def test_a_line_that_runs_while_another_thread_adds_is_not_blamed() -> None:
    two, go_on, done = Two(), threading.Semaphore(0), threading.Semaphore(0)

    def fill() -> None:
        while go_on.acquire(timeout=20):
            two.rarely(torch.zeros(5_000))
            done.release()

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()

    def step(number: int) -> None:
        go_on.release()
        assert done.acquire(timeout=20)

    look = CloserLook(0)
    for number in range(10):
        step(number)
    (top, *_) = look.finish(10, 20_000.0)
    look.open_window(nothing_found=False)
    for number in range(4):
        step(number)
    look.close_window(20_000.0, 1)
    assert top.source_line in ("self.kept.append(x)", "self.kept.insert(0, x)")


@pytest.mark.parametrize(
    ("first", "more", "a_step"), [(95, 5, 1.0), (96, 4, 1.0), (48, 2, 0.5), (190, 10, 2.0), (10, 5, 1.0), (11, 4, 1.0)]
)
def test_where_a_run_ends_within_a_step_nothing_is_counted_twice(first: int, more: int, a_step: float) -> None:
    """The first look was before or after what step 96 keeps; what begins late has no mean over the run."""
    two = Two()
    for _ in range(first):
        two.rarely(torch.zeros(5_000))
    look = CloserLook(96)
    for _ in range(more):
        two.rarely(torch.zeros(5_000))
    (top, *_) = look.finish(100, 20_000.0 * a_step, elsewhere=True)
    look.drop()
    assert (top.held_by, top.count) == ("Two.kept", first + more)
    assert top.count_per_step == pytest.approx(a_step)
    assert top.bytes_per_step == pytest.approx(20_000 * a_step, rel=0.05)


def test_losses_kept_with_their_graph_are_named_and_not_the_batch_beside_them() -> None:
    two, weights = Two(), torch.ones(5_000, requires_grad=True)
    look = CloserLook(0)
    for _ in range(10):
        rows = torch.zeros(5_000)
        two.rarely((rows * weights).sum())
    found = look.finish(10, 20_000.0)
    look.drop()
    assert [(one.held_by, one.kind) for one in found] == [("Two.kept", "graph")]
