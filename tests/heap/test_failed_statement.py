"""What the source around a failed line says of it."""

import sys
from types import FrameType
from typing import Any

import torch

from forgather_mem.heap.failed_statement import feeds_training, in_same_loop


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


def test_a_list_made_in_the_loop_is_of_its_batch() -> None:
    def loop() -> tuple[FrameType, list[int]]:
        lines = [here()[1]]
        for _ in range(1):
            lines.append(here()[1])
            frame, number = here()
        return frame, [*lines, number]

    frame, (before, inside, number) = loop()
    assert [in_same_loop(frame, line, number) for line in (before, inside)] == [False, True]
