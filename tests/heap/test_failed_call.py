"""What the functions on a traceback were doing when memory ran out."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from forgather_mem.heap.failed_call import (
    FailedOperation,
    failed_operation,
    has_gone_back,
    is_closure,
    may_train,
    user_line,
)


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


def entries(work: Callable[[], object]) -> list[TracebackType]:
    """Those of the traceback from `work` on."""
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        work()
    found, part = [], caught.tb.tb_next
    while part is not None:
        found.append(part)
        part = part.tb_next
    return found


def failed_at(work: Callable[[], object]) -> FailedOperation:
    found = failed_operation(entries(work))
    assert found is not None
    return found


def test_one_sample_is_known_by_who_asks_for_it() -> None:
    class Rows:
        def __getitem__(self, index: int) -> Any:
            return full()

    assert user_line(entries(lambda: Rows()[0]), MemoryError())[1]


def test_a_data_workers_lines_are_read_from_its_text() -> None:
    text = (
        "Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{torch.__file__}", line 54, in fetch\n'
        '  File "/home/me/train.py", line 7, in __getitem__\n    image = wide()\n'
    )
    assert user_line([], RuntimeError(text)) == ("train.py:7", True)
    assert user_line([], RuntimeError("CUDA out of memory")) == (None, False)


def test_a_backward_pass_that_was_passed_is_one_before_the_failure() -> None:
    loss = torch.zeros((), requires_grad=True)

    def before() -> None:
        full()
        loss.backward()

    def after() -> None:
        loss.backward()
        full()

    inner = [entries(work)[0] for work in (before, after)]
    assert list(map(has_gone_back, inner)) == [False, True]
    assert list(map(may_train, inner)) == [False, True]


def test_a_closure_takes_nothing() -> None:
    def closure() -> None:
        full()

    assert [is_closure(entry.tb_frame) for entry in entries(closure)] == [True, False]


def test_the_rows_of_the_largest_tensor_that_the_line_names_are_told() -> None:
    def pairs() -> None:
        anchors, boxes, _unnamed = torch.zeros(30, 4), torch.zeros(40, 4), torch.zeros(99, 9)
        torch.cat([anchors[:, 0], boxes[:, 0]]).expand(torch.empty(2**50).add(anchors).add(boxes))

    assert failed_at(pairs).rows == 40


class Full(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return full(torch.tanh(x))


def update(loss: torch.Tensor) -> None:
    loss.backward()


class Trains:
    def step(self, model: torch.nn.Module) -> None:
        self.back(model(torch.zeros(2)))

    def back(self, loss: torch.Tensor) -> None:
        loss.backward()


def test_a_model_in_evaluation_mode_evaluates_unless_its_function_goes_back() -> None:
    model = Full().eval()

    def looks() -> None:
        model(torch.zeros(2))

    def trains() -> None:
        model(torch.zeros(2)).sum().backward()

    def trains_by_another_function() -> None:
        update(model(torch.zeros(2)))

    def looks_in_a_loop_that_trains() -> None:
        for _ in range(2):
            torch.zeros((), requires_grad=True).backward()
            looks()

    assert failed_at(looks).evaluates
    assert failed_at(looks_in_a_loop_that_trains).evaluates
    for work in (trains, trains_by_another_function, lambda: Trains().step(model)):
        assert not failed_at(work).evaluates, work
    assert not failed_at(lambda: tree_map(model, torch.zeros(2))).evaluates, "a library may go back"
    model.train()
    assert not failed_at(looks).evaluates


def test_what_a_loop_goes_over_feeds_the_training_in_it() -> None:
    def labelled() -> Any:
        yield torch.ones((), requires_grad=True)
        full()

    def trains() -> None:
        for loss in labelled():
            loss.backward()

    def trains_on_a_list() -> None:
        for loss in full():
            loss.backward()

    def looks() -> None:
        for loss in labelled():
            print(loss)

    assert [failed_at(work).feeds_training for work in (trains, trains_on_a_list, looks)] == [True, True, False]
