"""The line that adds to a holder and what limits it, told of real holders."""

from __future__ import annotations

import queue
from typing import Any

import torch

from tests.heap.test_reachable import Holder, suspects_after


class Recent:
    """Keeps the last ones."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: list[torch.Tensor] = []

    def add(self, x: torch.Tensor) -> None:
        self.kept.append(x)
        if len(self.kept) > self.most:
            self.kept.pop(0)


def test_the_code_that_limits_a_holder_is_told_with_its_line() -> None:
    recent = Recent(most=1_000)
    (top, *_) = suspects_after(lambda step: recent.add(torch.zeros(5_000)))
    assert top.held_by == "Recent.kept"
    assert str(top.bounded).startswith("the code at test_holder_lines.py:")
    assert str(top.bounded).endswith(" limits Recent.kept")
    assert top.source_line == "self.kept.append(x)"


def test_a_limit_that_is_not_kept_is_none() -> None:
    recent = Recent(most=4)
    (top, *_) = suspects_after(lambda step: recent.kept.extend([torch.zeros(5_000), torch.zeros(5_000)]))
    assert (top.held_by, top.bounded) == ("Recent.kept", None)


def test_a_queue_with_a_size_is_limited() -> None:
    holder: Any = Holder()
    holder.outbox = queue.Queue(maxsize=300)
    (top, *_) = suspects_after(lambda step: holder.outbox.put(bytes(5_000 + step)))
    assert top.bounded == "Queue.queue holds 300 at most"
