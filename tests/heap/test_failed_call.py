"""What the functions on a traceback were doing when memory ran out."""

from typing import Any

import torch

from forgather_mem.heap.failed_call import is_closure, loss_rows
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
