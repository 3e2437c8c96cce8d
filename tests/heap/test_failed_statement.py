"""What the source around a failed line says of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from forgather_mem.heap.failed_lines import failed_operation
from forgather_mem.heap.failed_statement import feeds_training, in_same_loop, joined_later


def here() -> tuple[FrameType, int]:
    frame = sys._getframe(1)
    return frame, frame.f_lineno


def train(rows: list[Any]) -> None:
    rows[0].backward()


def test_what_a_function_that_trains_is_given_later_is_made_for_training() -> None:
    def grows() -> tuple[FrameType, int]:
        rows: Any = None
        for _ in range(2):
            if rows is not None:
                train(rows)
            found, rows = here(), None
        return found

    def looks() -> tuple[FrameType, int]:
        rows = [torch.ones((), requires_grad=True)]
        train(rows)
        found = here()
        return found

    assert feeds_training(*grows())
    assert not feeds_training(*looks())


def test_a_list_that_is_joined_behind_the_line_is_known() -> None:
    def joins() -> Any:
        parts = [here()]
        frame, number = parts[0]
        torch.stack([torch.ones(2)])
        return joined_later(frame, number), torch.cat(parts) if not parts else None

    def keeps() -> Any:
        parts = [here()]
        return joined_later(*parts[0])

    assert joins()[0] == "parts"
    assert keeps() is None


def test_a_list_made_in_the_loop_is_of_its_batch() -> None:
    def loop() -> tuple[FrameType, list[int]]:
        lines = [here()[1]]
        for _ in range(1):
            lines.append(here()[1])
            frame, number = here()
        return frame, [*lines, number]

    frame, (before, inside, number) = loop()
    assert [in_same_loop(frame, line, number) for line in (before, inside)] == [False, True]


def sizes_of(work: Callable[[], object]) -> Any:
    try:
        work()
    except RuntimeError as error:
        part = error.__traceback__
    entries = []
    while part is not None:
        entries.append((part.tb_frame, part.tb_lineno))
        part = part.tb_next
    return failed_operation(entries)


def test_tensors_of_an_object_are_named_and_what_the_line_assigns_is_not() -> None:
    class Bank:
        keys = property(lambda self: torch.empty(2**60))  # is not computed

        def __init__(self) -> None:
            self.queue = torch.zeros(90, 4)

        def scores(self) -> None:
            logits = torch.zeros(7, 500)
            for _ in range(1):
                logits = torch.empty(2**60) + self.queue
            logits.sum()

    found = sizes_of(Bank().scores)
    assert found.operands == (("self.queue", (90, 4)),)
    assert {7, 500} <= found.sizes
