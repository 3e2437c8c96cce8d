"""Reads lines of a log that differ in their numbers alone, as columns of those numbers that somebody wants."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.records import Sample

# So many samples with the same names before their pattern is compiled, which takes a millisecond; so many patterns
_WORTH_IT, _MOST_PATTERNS, _MOST_SHAPES = 64, 16, 1000
_NUMBER, _ANY_LINE = "[-+.0-9eE]+", r"[^\n]+\n?|\n"
_LINE = re.compile(_ANY_LINE.encode())
_DECODE = json.JSONDecoder().decode


class LineShape(NamedTuple):
    """What samples have in common whose lines differ in their numbers alone."""

    event: str
    names: tuple[str, ...]


class Rows(NamedTuple):
    """Samples of one shape that stand one after the other in a log, as columns of the numbers that were wanted.

    Attributes:
        shape: Their event and the names of the columns.
        steps, times_s: Of each; no epochs, which nobody wants.
        columns: The numbers, one sequence for each of the names.
    """

    shape: LineShape
    steps: Sequence[int]
    times_s: Sequence[float]
    columns: Sequence[Sequence[float]]

    def column(self, name: str) -> Sequence[float] | None:
        """The numbers of a name; None if these samples don't have it."""
        return self.columns[self.shape.names.index(name)] if name in self.shape.names else None

    def samples(self) -> Iterator[Sample]:
        """The same one by one."""
        event, names = self.shape
        for step, time_s, *row in zip(self.steps, self.times_s, *self.columns, strict=True):
            yield Sample(event, step, None, time_s, dict(zip(names, row, strict=True)))


class _Pattern(NamedTuple):
    """What finds in each line of a shape the wanted numbers, and each other line as a whole."""

    shape: LineShape
    line: re.Pattern[bytes]

    @classmethod
    def of(cls, shape: LineShape, wanted: Callable[[str], bool]) -> _Pattern:
        line = re.compile(f"{_pattern(shape, wanted)}|({_ANY_LINE})".encode())
        return cls(LineShape(shape.event, tuple(filter(wanted, shape.names))), line)

    def rows(self, numbers: Sequence[Sequence[bytes]]) -> Rows | None:
        """The rows of these numbers; None if one of them is no number, or none of a machine."""
        text = b"],[".join(map(b",".join, numbers)).decode()
        try:
            columns = _DECODE(f"[[{text}]]")
        except ValueError:
            return None
        if not all(-MOST <= min(column) <= max(column) <= MOST for column in columns):  # 1e999 is infinite
            return None
        steps, times_s, *values = columns
        return Rows(self.shape, list(map(int, steps)), times_s, values)


class LikeLines:
    """The shapes of the samples of a log; each that JSON has read and `learn` has been shown may add one.

    Args:
        wanted: Which names' numbers are read.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._patterns: list[_Pattern] = []
        self._seen: Counter[LineShape] = Counter()

    def split(self, block: bytes) -> Sequence[Rows | bytes]:
        """The lines of a block in order: those of a known shape in one piece, each other one as it is, for JSON."""
        return _split(block, self._patterns)

    def learn(self, sample: Sample) -> None:
        """JSON has read this one."""
        if len(self._patterns) == _MOST_PATTERNS or sample.device is not None or not sample.values:
            return
        if len(self._seen) == _MOST_SHAPES:  # they are made up
            self._seen.clear()
        shape = LineShape(sample.event, tuple(sample.values))
        self._seen[shape] += 1
        if self._seen[shape] == _WORTH_IT:
            self._patterns.append(_Pattern.of(shape, self._wanted))


def lines_of(block: bytes) -> Sequence[bytes]:
    """The lines of a block, the last one with or without its end."""
    found: list[bytes] = _LINE.findall(block)
    return found


def _split(block: bytes, patterns: Sequence[_Pattern]) -> Sequence[Rows | bytes]:
    """The lines that the first pattern finds in one piece; the others are for the next ones, and at last for JSON."""
    if not patterns:
        return lines_of(block)
    pieces: list[Rows | bytes] = []
    *numbers, others = zip(*patterns[0].line.findall(block), strict=True)
    end = 0
    for is_other, lines in itertools.groupby(map(bool, others)):
        start, end = end, end + len(list(lines))
        if is_other:
            pieces += _split(b"".join(others[start:end]), patterns[1:])
        elif (rows := patterns[0].rows([column[start:end] for column in numbers])) is not None:
            pieces.append(rows)
        else:
            return lines_of(block)
    return pieces


def _pattern(shape: LineShape, wanted: Callable[[str], bool]) -> str:
    """That of a line as `jsonl.sample_line` writes it, its step, its time and the wanted numbers in groups.

    >>> line = '{"type":"sample","event":"e","step":1,"epoch":null,"time_s":2,"values":{"a":3e2,"b":4}}'
    >>> re.fullmatch(_pattern(LineShape("e", ("a", "b")), "a".__eq__), line + "\\n").groups()
    ('1', '2', '3e2')
    """
    values = ",".join(
        f"{re.escape(json.dumps(name))}:{f'({_NUMBER})' if wanted(name) else _NUMBER}" for name in shape.names
    )
    return (
        rf'\{{"type":"sample","event":{re.escape(json.dumps(shape.event))},"step":({_NUMBER}),"epoch":(?:null|{_NUMBER}),'
        rf'"time_s":({_NUMBER}),"values":\{{{values}\}}\}}\n'
    )
