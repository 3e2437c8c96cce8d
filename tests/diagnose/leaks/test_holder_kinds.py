"""What is said of a holder: its name, the line that fills it, the cure, and whether it will stop by itself."""

import asyncio
import contextlib
import heapq
import queue
import shlex
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import TrainerState

from forgather_mem.diagnose.leaks.sizes import LeakSizes, counted_bytes
from forgather_mem.heap.object_size import deep_bytes
from tests.heap.test_reachable import Holder, line_that_adds, suspects_after

pytestmark = pytest.mark.alone(forked=True)


def add_to(pool_of: int, donors: dict[int, list[bytes]] = {0: []}) -> None:  # noqa: B006  # the leak
    pool = donors[pool_of]
    pool.append(bytes(5000))


class Heap:
    def __init__(self) -> None:
        self.worst: list[tuple[int, torch.Tensor]] = []

    def add(self, step: int) -> None:
        heapq.heappush(self.worst, (-step, torch.zeros(5000)))


class Span:
    def __init__(self) -> None:
        self.active = torch.zeros(5000)


class Opens:
    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        before = torch.zeros(3000)
        yield
        del before

    def step(self) -> None:
        self.stack.enter_context(self.measured())


def test_a_default_argument_is_named() -> None:
    (top, *_) = suspects_after(lambda step: add_to(0))
    assert top.held_by.endswith("default of 'donors' in add_to[0]")


def test_what_is_new_in_a_heap_does_not_stand_at_its_end() -> None:
    heap = Heap()
    for step in range(20):
        heap.add(step)
    (top, *_) = suspects_after(lambda step: heap.add(100 + step))
    assert top.held_by == "Heap.worst"
    assert top.bytes_per_step == pytest.approx(20_000, rel=0.1)
    assert "heappush(" in top.source_line


class Outbox(queue.PriorityQueue):
    """A queue by another name."""


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, Outbox])
def test_a_queue_that_grows_is_named_as_such(kind: type[queue.Queue[Any]]) -> None:
    holder: Any = Holder()
    holder.outbox = kind()
    holder.outbox.put((0, bytes(5000)))
    (top, *_) = suspects_after(lambda step: holder.outbox.put((step + 1, bytes(5000))))
    assert (top.held_by, top.kind) == ("Outbox.queue" if kind is Outbox else "Holder.outbox.queue", "queue")
    assert str(top.cure).startswith("drain it: no thread that runs takes from it now")
    ended = threading.Event()
    threading.Thread(target=lambda: [holder.outbox.get(), ended.wait(60)], daemon=True).start()
    (top, *_) = suspects_after(lambda step: holder.outbox.put((step + 20, bytes(5000))))
    ended.set()
    assert str(top.cure).startswith("drain it, or bound it with maxsize"), "its consumer is slow"


def test_a_method_that_asks_whether_it_is_empty_is_no_cure() -> None:
    holder: Any = Holder()
    holder.inbox = asyncio.Queue()
    holder.inbox.put_nowait(bytes(5000))
    (top, *_) = suspects_after(lambda step: holder.inbox.put_nowait(bytes(5000)))
    assert (top.kind, "empty()" in str(top.cure)) == ("queue", False)


def test_contexts_that_nobody_leaves_are_told_by_their_stack() -> None:
    opens = Opens()
    opens.step()
    (top, *_) = suspects_after(lambda step: opens.step())
    assert top.held_by == "Opens.stack._exit_callbacks"
    assert "enter_context(" in line_that_adds(top, lambda step: opens.step())


def test_a_container_that_a_library_fills_is_told_by_its_path() -> None:
    state, words = TrainerState(), shlex.shlex("")
    words.push_token("a")
    (top, *_) = suspects_after(lambda step: state.log_history.append({"histogram": bytes(5000)}))
    assert (top.held_by, top.kind) == ("TrainerState.log_history", "list")
    (top, *_) = suspects_after(lambda step: words.push_token("a" * 5000 + str(step)))
    assert (top.kind, str(top.held_by)[:16], str(top.held_by)[-10:]) == ("list", "local 'words' of", ").pushback")


def test_what_a_hook_or_an_optimizer_leads_to_is_told_as_what_it_is() -> None:
    layer, kept, rows = torch.nn.Linear(8, 8), list[torch.Tensor](), torch.zeros(5000)
    layer.register_forward_hook(lambda *_, kept=kept: kept.append(rows.clone()))
    optimizer = torch.optim.SGD(layer.parameters())
    optimizer.state[layer.weight]["history"] = [rows]
    for kind, where, grow in (
        ("tensor", "_forward_hooks[", lambda step: layer(torch.zeros(8))),
        ("tensor", ".state[", lambda step: optimizer.state[layer.weight]["history"].append(rows.clone())),
        ("list", ".param_groups[", lambda step: optimizer.param_groups[0].setdefault("rates", []).append(bytes(5000))),
        ("param_groups", ".param_groups[", lambda step: optimizer.param_groups[0]["params"].append(rows.clone())),
    ):
        grow(-1)
        (top, *_) = suspects_after(grow)
        assert (top.kind, where in str(top.held_by)) == (kind, True)


def test_functions_wrapped_again_and_again_are_found() -> None:
    holder: Any = Holder()
    holder.schedules = [lambda step: 1.0]

    def wrap(step: int) -> None:
        inner, window = holder.schedules[0], torch.zeros(5000)
        holder.schedules[0] = lambda step: inner(step) * window.mean()

    (top, *_) = suspects_after(wrap)
    assert str(top.held_by).startswith("Holder.schedules[0]")
    assert top.bytes_per_step == pytest.approx(20_000, rel=0.2)


def test_a_mapping_with_a_length_of_its_own_bounds_nothing() -> None:
    cache: weakref.WeakKeyDictionary[Span, Any] = weakref.WeakKeyDictionary()
    holder: Any = Holder()
    holder.cache = cache

    def grow(step: int) -> None:
        span = Span()
        cache[span] = (span, bytes(3000))

    (top, *_) = suspects_after(grow)
    assert (str(top.held_by)[:16], top.bounded) == ("local 'cache' of", None), "the class is Python's own"


def test_a_thread_is_as_large_as_what_its_functions_hold() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def work() -> None:
        weights = torch.zeros(50_000)
        begun.set()
        go_on.wait(60)
        del weights

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        assert deep_bytes(thread, set(), set()) == pytest.approx(200_000, rel=0.1)
    finally:
        go_on.set()
        thread.join()


def test_an_error_is_as_large_as_its_frames_variables_not_as_their_modules() -> None:
    def fails() -> None:
        rows = torch.zeros(1000)
        raise ValueError(rows.shape)

    try:
        fails()
    except ValueError as error:
        caught = error
    frame = sys._getframe()
    size = deep_bytes(caught, {id(value) for value in frame.f_locals.values()} - {id(caught)}, set())
    assert size == pytest.approx(4000, abs=2500)


def test_what_is_ours_is_no_growth() -> None:
    with contextlib.closing(LeakSizes()) as sizes:
        before, first = counted_bytes(), sizes.read(1)["native"]
        ours = torch.ones(20_000_000, dtype=torch.uint8)
        sizes.leave_out(before)
        later = next(found["native"] for step in range(2, 50) if "native" in (found := sizes.read(step)))
    assert [later - first, sizes.totals["process"], ours[0]] == pytest.approx([0, 0, 1], abs=5_000_000)
