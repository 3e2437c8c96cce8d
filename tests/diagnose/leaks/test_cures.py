"""Cures can be applied where they are told, and are not in force already; the owner is the user's."""

import functools
import queue
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from forgather_mem.diagnose.leaks.holder_kinds import cure_of_cycle, recorder
from forgather_mem.diagnose.leaks.worker_code import worker_suspects
from tests.heap.test_reachable import Holder, line_that_adds, suspects_after

pytestmark = pytest.mark.alone(forked=True)


class Masker:
    def __init__(self) -> None:
        self.noise = bytes(50_000)

    @functools.cache  # noqa: B019  # that is what is told
    def starts(self) -> bytes:
        return bytes(500)


def test_a_cache_on_a_method_is_one_suspect_that_keeps_its_objects() -> None:
    (top, *others) = suspects_after(lambda step: Masker().starts())
    assert (top.type, top.each, others) == ("lru_cache", "Masker with bytes of 50,000", [])
    assert top.bytes_per_step == pytest.approx(50_500, rel=0.1)
    assert "each key holds `self`" in str(top.cure)


class Hits:
    found = torch.empty(0)

    def reset(self) -> None:
        self.found = torch.empty(0)

    def freely_add(self, step: int) -> None:
        self.found = torch.cat((self.found, torch.zeros(5000)))


def test_a_method_of_the_holders_own_that_empties_it_is_the_cure() -> None:
    spy, hits = Mock(), Hits()
    spy(b"")
    hits.freely_add(-1)
    (top, *_) = suspects_after(lambda step: spy(torch.zeros(5000, requires_grad=True).exp()))
    assert str(top.cure).startswith("Mock.reset_mock() empties it")
    assert top.source_line == "", "that `spy` is made here adds nothing to it"
    (top, *_) = suspects_after(hits.freely_add)
    assert str(top.cure).startswith("Hits.reset() empties it"), "and not what only begins like that"
    assert (top.held_by, top.each) == ("Hits.found", ""), "it was shorter then"


class Adapters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.ModuleDict(), torch.nn.ModuleDict()

    def add(self, step: int) -> None:
        self.b[f"task{step}"] = torch.nn.Linear(100, 100)


def test_a_librarys_container_in_the_users_object_is_named_by_that_object_and_its_line() -> None:
    adapters = Adapters()
    (top, *_) = suspects_after(adapters.add)
    assert top.held_by == "Adapters.b"
    assert line_that_adds(top, adapters.add) == 'self.b[f"task{step}"] = torch.nn.Linear(100, 100)'


def test_threads_that_wait_for_room_in_a_queue_are_not_to_be_joined() -> None:
    full: queue.Queue[Any] = queue.Queue(maxsize=1)
    full.put(None)
    holder = Holder()

    def begin(step: int) -> None:
        thread = threading.Thread(target=full.put, args=(bytes(50_000),), daemon=True)
        thread.start()
        holder.kept.append(thread)

    top = next(one for one in suspects_after(begin) if one.kind == "threads")
    assert (top.each[:19], str(top.cure)[:25]) == ("Thread of Queue.put", "threads wait in Queue.put")
    for _ in range(11):
        full.get()


class Swish(torch.autograd.Function):
    """A class of the user's whose context is a part of a cycle."""


def test_a_cycle_of_autograds_context_is_told_with_what_mends_it() -> None:
    context: Any = type(torch.ones(1, requires_grad=True).exp().grad_fn)
    assert "save_for_backward" not in cure_of_cycle(context)
    assert "save_for_backward" in cure_of_cycle(Swish._backward_cls)  # type: ignore[attr-defined]
    assert "weakref" in cure_of_cycle(Holder)


def test_a_recorder_that_is_on_is_named() -> None:
    assert recorder() is None
    with torch.autograd.profiler.profile():
        assert "profiler" in str(recorder())
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=False):
        assert "set_detect_anomaly(False)" in str(recorder())
    assert recorder() is None


class Remembers(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.read: list[Any] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_new_workers_are_advised_where_the_loader_keeps_them(persistent: bool) -> None:
    loader = torch.utils.data.DataLoader(Remembers(), num_workers=1, persistent_workers=persistent)
    (top,) = worker_suspects(loader, 1e5)
    assert ("persistent_workers=False" in str(top.cure)) is persistent


def test_a_number_with_its_graph_beside_a_plain_tensor_gets_the_cure_of_both() -> None:
    holder = Holder()
    loss = torch.zeros((), requires_grad=True)
    (top, *_) = suspects_after(lambda step: holder.kept.append({"loss": loss * 2, "logits": torch.zeros(5000)}))
    assert top.cure == "keep only the last ones{last}; of what has a graph its number, .item()"
