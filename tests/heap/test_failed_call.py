"""What the functions on a traceback were doing when memory ran out."""

from typing import Any

import torch

from forgather_mem.heap.failed_call import is_closure, loss_rows, may_repeat
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


def test_what_is_in_a_loop_and_not_before_it_or_in_its_head_may_repeat() -> None:
    def inside() -> None:
        for _ in range(2):
            full()

    def outside() -> None:
        full()
        for _ in range(2):
            print()

    def head() -> None:
        for _ in full():
            print()

    assert [may_repeat(entries(work)[0]) for work in (inside, outside, head)] == [True, False, False]
