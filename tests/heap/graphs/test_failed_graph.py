"""A graph is in vain where no line goes back through it; where one may, nothing is said."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from forgather_mem.heap.failed_lines import FailedOperation, failed_operation
from forgather_mem.heap.graphs.failed_graph import VainGraph


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


class FullAtOnce(torch.nn.Module):
    """Runs out before anything has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        return full(x)


def failed(work: Callable[[], object]) -> FailedOperation:
    with pytest.raises(MemoryError) as caught:
        work()
    entries, part = [], caught.tb.tb_next  # without this function
    while part is not None:
        entries.append((part.tb_frame, part.tb_lineno))
        part = part.tb_next
    found = failed_operation(entries)
    assert found is not None
    return found


def graph_of(work: Callable[[], object]) -> VainGraph | None:
    return failed(work).graph


def test_a_pass_that_fails_in_its_first_layer_keeps_a_graph_unless_the_source_turns_it_off() -> None:
    model = FullAtOnce()

    @torch.no_grad()
    def decorated() -> None:
        model(torch.ones(2))

    def within() -> None:
        with torch.inference_mode():
            model(torch.ones(2))

    def records() -> None:
        model(torch.ones(2))

    found = graph_of(records)
    assert found is not None
    assert found.line == f"test_failed_graph.py:{records.__code__.co_firstlineno + 1}"
    assert graph_of(decorated) is graph_of(within) is None


def neighbours(net: torch.nn.Module, rows: torch.Tensor) -> Any:
    features = torch.cat([net(part) for part in rows.split(2)])
    return full(features)


def score(features: torch.Tensor) -> Any:
    return full(features)


def test_results_of_passes_are_those_of_the_function_that_made_them() -> None:
    net = torch.nn.Linear(2, 2)

    def evaluates() -> None:
        neighbours(net, torch.ones(4, 2))

    def given() -> None:
        score(net(torch.ones(4, 2)))  # who made them can't be told

    found = graph_of(evaluates)
    assert found is not None
    first = neighbours.__code__.co_firstlineno
    assert found.line == f"test_failed_graph.py:{evaluates.__code__.co_firstlineno + 1}"
    assert found.function == ("test_failed_graph.py", first, first + 2)
    assert found.is_made_by(f"test_failed_graph.py:{first + 1}")
    assert not found.is_made_by(f"test_failed_graph.py:{first + 9}")
    assert graph_of(given) is None


def test_what_a_training_goes_back_through_later_is_not_in_vain() -> None:
    net = torch.nn.Linear(2, 2)

    def trains() -> None:
        hidden = net(torch.ones(4, 2))
        loss = full(hidden)
        loss.backward()

    def evaluates_after_it() -> None:
        net(torch.ones(4, 2)).sum().backward()
        hidden = net(torch.ones(4, 2))
        full(hidden)

    assert graph_of(trains) is None
    found = graph_of(evaluates_after_it)
    assert found is not None
    assert found.name == "hidden"


def test_a_model_in_evaluation_mode_evaluates_and_one_that_is_trained_so_does_not() -> None:
    model = FullAtOnce().eval()

    def evaluates() -> None:
        with torch.no_grad():
            model(torch.ones(2))

    def trains() -> None:
        model(torch.ones(2)).backward()

    assert [failed(work).evaluates for work in (evaluates, trains)] == [True, False]


def labelled(model: torch.nn.Module) -> Iterator[Any]:
    yield model(torch.ones(2))


def test_what_a_loop_that_trains_goes_over_is_data() -> None:
    model = FullAtOnce()

    def trains() -> None:
        for batch in labelled(model):
            batch.backward()

    def looks() -> None:
        for batch in labelled(model):
            print(batch)

    assert [failed(work).feeds_training for work in (trains, looks)] == [True, False]
