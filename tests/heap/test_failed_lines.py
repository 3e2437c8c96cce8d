"""What stands before the failed line of a function, and what was to become of what it could not make."""

from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from forgather_mem.heap.failed_lines import (
    FailedOperation,
    failed_operation,
    has_passed,
    is_closure,
    may_train,
    user_line,
)


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


def frames(work: Callable[[], object]) -> list[FrameType]:
    with pytest.raises(MemoryError) as caught:
        work()
    entries, part = [], caught.tb
    while part is not None:
        entries.append(part.tb_frame)
        part = part.tb_next  # type: ignore[assignment]
    return entries


def test_one_sample_is_known_by_who_asks_for_it() -> None:
    class Rows:
        def __getitem__(self, index: int) -> Any:
            return full()

    found = frames(lambda: Rows()[0])
    assert user_line([(frame, frame.f_lineno) for frame in found], MemoryError())[1]


def test_a_data_workers_lines_are_read_from_its_text() -> None:
    text = (
        "Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{torch.__file__}", line 54, in fetch\n'
        '  File "/home/me/train.py", line 7, in __getitem__\n    image = wide()\n'
    )
    assert user_line([], RuntimeError(text)) == ("train.py:7", True)
    assert user_line([], RuntimeError("CUDA out of memory")) == (None, False)


def test_a_backward_pass_that_was_passed_is_one_on_an_earlier_line() -> None:
    loss = torch.zeros((), requires_grad=True)

    def before() -> None:
        full()
        loss.backward()

    def after() -> None:
        loss.backward()
        full()

    inner = [frames(work)[-2] for work in (before, after)]
    assert [has_passed(frame, frame.f_lineno, ("backward",)) for frame in inner] == [False, True]
    assert [may_train(frame, frame.f_lineno) for frame in inner] == [False, True]


def test_a_closure_takes_nothing() -> None:
    def closure() -> None:
        full()

    inner = frames(closure)
    assert [is_closure(frame) for frame in inner[-2:]] == [True, False]


def failed_at(work: Callable[[], object]) -> FailedOperation:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        work()
    entries, part = [], caught.tb.tb_next  # without this function
    while part is not None:
        entries.append((part.tb_frame, part.tb_lineno))
        part = part.tb_next
    found = failed_operation(entries)
    assert found is not None
    return found


def test_the_largest_tensors_that_the_line_names_are_told_with_their_shapes() -> None:
    def pairs() -> None:
        anchors, boxes, _unnamed = torch.zeros(30, 4), torch.zeros(40, 4), torch.zeros(99, 9)
        corner = torch.zeros(2)
        torch.cat([anchors[:, 0], boxes[:, 0], corner, torch.empty(2**50)])

    found = failed_at(pairs)
    assert found.operands == (("boxes", (40, 4)), ("anchors", (30, 4)))
    assert found.at_once == 1


def test_an_operation_on_the_result_of_another_holds_two_arrays_at_once() -> None:
    def normal() -> None:
        table = torch.zeros(3)
        (table - 1) / torch.empty(2**50)

    assert failed_at(normal).at_once == 2


class Full(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(x)
        return full(hidden)


def preview(model: torch.nn.Module, x: torch.Tensor) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), model)(x)


def test_a_graph_that_no_backward_pass_uses_is_told_with_the_line_of_its_pass() -> None:
    def trains() -> None:
        preview(Full(), torch.zeros(2, 4)).sum().backward()

    def trains_later() -> None:
        loss = preview(Full(), torch.zeros(2, 4))
        loss.backward()

    def trains_by_another_function() -> None:
        update(preview(Full(), torch.zeros(2, 4)))
        update(torch.zeros(()))

    def looks() -> None:
        preview(Full(), torch.zeros(2, 4))

    def looks_without_a_graph() -> None:
        with torch.no_grad():
            preview(Full(), torch.zeros(2, 4))

    line = preview.__code__.co_firstlineno + 1
    found = failed_at(looks).graph
    assert found is not None
    assert found.line == f"test_failed_lines.py:{line}"
    for work in (trains, trains_later, trains_by_another_function, looks_without_a_graph):
        assert failed_at(work).graph is None, work


def update(loss: torch.Tensor) -> None:
    loss.backward()


def test_the_batch_size_of_the_only_loader_is_known() -> None:
    def loop(*sizes: int) -> None:
        loaders = [torch.utils.data.DataLoader([1], batch_size=size) for size in sizes]
        first, last = loaders[0], loaders[-1]  # noqa: F841
        full()

    assert failed_at(lambda: loop(4)).loader_rows == 4
    assert failed_at(lambda: loop(4, 8)).loader_rows is None
