"""Objects that should be gone: which are alive, how large they are, who holds them; for graphs see `test_release`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from forgather_mem.heap.retained import Retained, WeakWatch
from forgather_mem.probes.tensors import tensors_in

pytestmark = pytest.mark.alone(forked=True)

KEPT: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Any:
    yield
    KEPT.clear()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(100, 100, bias=False)
        self.register_buffer("mask", torch.zeros(50))


def test_what_is_gone_is_not_told() -> None:
    watch = WeakWatch([Net(), torch.zeros(3), [1, 2], None, 5])
    assert watch.held() == []


def test_a_view_of_a_tensor_is_told_as_what_holds_it() -> None:
    whole = torch.zeros(100)
    KEPT["first"] = whole[:3]
    watch = WeakWatch([whole])
    del whole
    (held,) = watch.held()
    assert held.owners == (f"{__name__}.KEPT['first'], a view of it: clone it",)


@pytest.mark.slow
def test_what_is_alive_is_told_with_its_size_and_its_holder() -> None:
    model = Net()
    KEPT["best"] = [model]
    watch = WeakWatch([model, torch.zeros(3)], ["the model", "a tensor"])
    del model
    (held,) = watch.held()
    assert (held.what, held.whole, held.num_bytes, held.num_tensors) == ("the model", True, 40_000 + 200, 2)
    assert held.owners == (f"{__name__}.KEPT['best'][0]",)
    assert str(held) == f"the model is still held, 39.3 KiB in 2 tensors, by\n  {__name__}.KEPT['best'][0]"
    KEPT.clear()
    assert watch.held() == []


def test_a_part_that_outlives_its_model_is_told_as_such() -> None:
    model = Net()
    KEPT.update({str(number): [model.inner.weight] for number in range(5)})
    watch = WeakWatch([model])
    del model
    (held,) = watch.held(max_owners=2)
    assert (held.what, held.whole, held.num_bytes) == ("Net", False, 40_000)
    assert str(held).startswith("the memory of Net is still held, 39.1 KiB in 1 tensor, by\n")
    assert len(held.owners) == 2, "no more are told than were asked for"
    assert all(owner.startswith(f"{__name__}.KEPT['") for owner in held.owners)
    KEPT.clear()
    rows = [torch.zeros(50) for _ in range(40)]
    KEPT.update(deep={"rows": rows}, one=[rows[0]])
    watch = WeakWatch([rows])
    del rows
    assert watch.held()[0].owners == (f"{__name__}.KEPT['deep']['rows']",), "the holder of all, not of one"


def test_without_an_owner_it_says_what_that_means() -> None:
    held = Retained(what="Net", whole=True, num_bytes=0, num_tensors=0, owners=())
    assert str(held) == (
        "Net is still held, and no variable leads to it: a running statement or C++ code holds it, "
        "or it is garbage hidden by gc.freeze()"
    )
    held = replace(held, searched=False)
    assert str(held) == "Net is still held; holder not found: the search ran out of time"


def test_the_tensors_of_an_optimizer_and_of_containers_are_found_each_once() -> None:
    model = Net()
    weight, momentum = model.inner.weight, torch.zeros(100)
    weight.sum().backward()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[weight]["momentum_buffer"] = momentum
    found = {id(tensor) for tensor in tensors_in([{"model": model}, (optimizer, optimizer)], gradients=True)}
    assert {id(weight), id(weight.grad), id(model.mask), id(momentum)} <= found
    assert len(list(tensors_in([weight, weight], gradients=True))) == 2, "it and its gradient"
