"""Answers in place of values that a plan does not have: a number is 1, a condition holds, a mask chooses all."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np
import torch

from forgather_mem.planning.known_operations import Known
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.private_state import let_tensors_answer
from forgather_mem.source.source_lines import OURS, line_name, with_callers

NUMBERS, CHOICES, MASKS = "numbers", "choices", "masks"
_OF_TORCH = "_tensor.py", "_subclasses", "_dynamo", "_compile.py", "utils/_", "_ops.py"
_MACHINERY = (OURS, *(f"{torch.__path__[0]}/{name}" for name in _OF_TORCH))
# Torch's LBFGS has not found its minimum, keeps what an iteration tells, and looks along each direction twice: which
# lines ask for that, each so many times in a row for once that it holds (torch 2.6 to 2.13). Others end it at last.
_OF_LBFGS = {"if ys > ": 1, "if f_new > (f + c1 * t * gtd)": 1, "* d_norm < tolerance_change": 2}
Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


class StandIns:
    """What is answered in one plan.

    Args:
        otherwise: Lines in which a condition does not hold; "numbers" if these are others than 1, "choices" if all fall
            on the same, "masks" if one chooses a single element.
        before: Those of another plan.

    Attributes:
        known: The operations that they have met.
        conditions: The lines that have asked for one, in order.
        numbers: The same of numbers, with how often.
        choices: The same of what weights choose, as experts or tokens.
        masks: The same of sizes.
        operations: How many there were.
        asked: How often one of these was.
    """

    def __init__(self, otherwise: Iterable[str] = (), before: StandIns | None = None) -> None:
        self.otherwise, self._in_a_row = frozenset(otherwise), Counter[str]()  # conditions, since the last step
        self.known: Known = before.known if before else {}
        self.conditions, self.numbers, self.choices, self.masks = (Counter[str]() for _ in range(4))
        self.operations = self.asked = 0

    def value(self, dtype: torch.dtype) -> float:
        """Instead of one of this kind."""
        line, source = self._asking_line()
        if dtype == torch.bool:
            self._in_a_row[line] += 1
            is_known = "torch/optim/lbfgs.py:" in line
            every = next((count for text, count in _OF_LBFGS.items() if is_known and text in source), 64)
            is_last = self._in_a_row[line] % every == 0  # a loop shall end: after some time it is the other way round
            if is_known:
                return is_last
            self.conditions[line] += 1
            return (line in self.otherwise) == is_last
        self.numbers[line] += 1
        if not (dtype.is_floating_point or dtype.is_complex):
            return 2 if NUMBERS in self.otherwise else 1
        return (0.01, 100.0)[self.numbers[line] % 2] if NUMBERS in self.otherwise else 1.0

    def count_of(self, most: int) -> int:
        """How many are chosen by a mask of so many: all."""
        self.masks[self._asking_line()[0]] += 1
        return min(most, 1) if MASKS in self.otherwise else most

    def chosen(self, shape: Sequence[int], most: int) -> torch.Tensor:
        """Numbers below `most`, as those of experts: each as often as others, and no two alike along the last axis."""
        self.choices[self._asking_line()[0]] += 1
        if CHOICES in self.otherwise:
            return (torch.arange(shape[-1]) % max(1, most)).expand(shape).contiguous()
        return (torch.arange(prod(shape)) % max(1, most)).view(shape)

    def steps(self) -> None:
        """A step is through: no loop that asks goes on."""
        self._in_a_row.clear()

    def _asking_line(self) -> tuple[str, str]:
        """The innermost line that is no machinery of torch's, and its text."""
        self.asked += 1
        callers = with_callers(sys._getframe(1))
        own = (one for one in callers if not one.f_code.co_filename.startswith(_MACHINERY))
        frame = next(own, sys._getframe(1))  # a thread of torch's has none
        path = frame.f_code.co_filename
        return line_name(path, frame.f_lineno), linecache.getline(path, frame.f_lineno)

    def answer(self, holds: bool, notes: list[str]) -> None:
        """Let tensors without values, for good, answer also where torch asks no operation.

        Args:
            holds: Whether an array is the tensor's memory, as on the host.
            notes: Told if they can't.
        """

        def array(tensor: torch.Tensor, *_: object, **__: object) -> Array:
            one = np.array(self.value(tensor.dtype), torch.empty(0, dtype=tensor.dtype).numpy().dtype)
            return np.asarray(_Repeated(one, tuple(tensor.shape), tensor if holds else None))

        let_tensors_answer({"numpy": array, "__array__": array, "tolist": lambda tensor: array(tensor).tolist()}, notes)
        formatted = {"__format__": lambda tensor, how: format(self.value(tensor.dtype), how) if how else str(tensor)}
        let_tensors_answer(formatted, notes)

    def lines(self) -> dict[str, list[str]]:
        """What can be answered otherwise, each with the lines that have asked for it."""
        kinds = {NUMBERS: self.numbers, CHOICES: self.choices, MASKS: self.masks}
        # The condition asked for last is the last: a plan may have failed for it
        return {**{kind: [*of] for kind, of in kinds.items() if of}, **{line: [line] for line in self.conditions}}

    def notes(self) -> list[str]:
        """What was answered."""
        bounded = f"All is planned of what a mask chooses ({listed_lines(self.masks)}): an upper bound."
        notes = [Note(bounded, "at most")] if self.masks else []
        count = len(self.numbers)
        what = "A value was" if count == 1 else f"{count} values were"
        return [*notes, *([f"{what} taken as 1 ({listed_lines(self.numbers)})."] if count else [])]


class _Repeated:
    """For numpy: one number as an array of any size, which takes no memory and holds a tensor."""

    def __init__(self, one: Array, shape: tuple[int, ...], held: torch.Tensor | None) -> None:
        self._one, self._held = one, held
        self.__array_interface__ = {**one.__array_interface__, "shape": shape, "strides": (0,) * len(shape)}


def listed_lines(lines: Iterable[str]) -> str:
    """The first few of these lines."""
    named = list(lines)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
