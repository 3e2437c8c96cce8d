"""What the functions on a traceback were doing when memory ran out."""

from typing import Any

import torch

from forgather_mem.heap.failed_call import feeds_training, is_closure, loss_rows
from tests.heap.test_census import entries


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


def test_a_closure_takes_nothing() -> None:
    def closure() -> None:
        full()

    assert [is_closure(entry.tb_frame) for entry in entries(closure)] == [True, False]


def test_the_rows_of_the_largest_tensor_that_the_line_names_are_told_of_a_loss() -> None:
    anchors, boxes, _unnamed = torch.zeros(30, 4), torch.zeros(40, 4), torch.zeros(99, 9)

    def pairs() -> None:
        torch.cat([anchors[:, 0], boxes[:, 0]]).expand(torch.empty(2**50).add(anchors).add(boxes))

    assert loss_rows(entries(pairs)[0]) is None
    boxes = boxes.requires_grad_().exp()
    assert loss_rows(entries(pairs)[0]) == 40


def test_what_a_loop_goes_over_feeds_the_training_in_it() -> None:
    def labelled() -> Any:
        yield torch.ones((), requires_grad=True)
        full()

    def update(loss: torch.Tensor) -> None:
        loss.backward()

    def trains() -> None:
        for loss in labelled():
            loss.backward()

    def trains_by_another_function() -> None:
        for loss in labelled():
            update(loss)

    def trains_on_a_list() -> None:
        for loss in full():
            loss.backward()

    def looks() -> None:
        for loss in labelled():
            print(loss)

    works = [trains, trains_by_another_function, trains_on_a_list, looks]
    assert [feeds_training(entries(work)[0]) for work in works] == [True, True, True, False]
