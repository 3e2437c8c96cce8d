"""Reads lines of a log that differ in their numbers alone, as columns: in a third of the time of JSON and records."""

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
_NUMBER = "[-+.0-9eE]+"


class LineShape(NamedTuple):
    """What samples have in common whose lines differ in their numbers alone."""

    event: str
    names: tuple[str, ...]


class Rows(NamedTuple):
    """Samples of one shape that stand one after the other in a log, as columns of their numbers."""

    shape: LineShape
    steps: Sequence[int]
    epochs: Sequence[float | None]
    times_s: Sequence[float]
    columns: Sequence[Sequence[float]]  # one for each of the shape's names

    def column(self, name: str) -> Sequence[float] | None:
        """The numbers of a name; None if these samples don't have it."""
        return self.columns[self.shape.names.index(name)] if name in self.shape.names else None

    def of(self, wanted: Callable[[str], bool]) -> Rows:
        """The same with these names alone."""
        kept = list(map(wanted, self.shape.names))
        shape = LineShape(self.shape.event, tuple(itertools.compress(self.shape.names, kept)))
        return self._replace(shape=shape, columns=list(itertools.compress(self.columns, kept)))

    def samples(self) -> Iterator[Sample]:
        """The same one by one."""
        event, names = self.shape
        heads = zip(self.steps, self.epochs, self.times_s, strict=True)
        for (step, epoch, time_s), row in zip(heads, zip(*self.columns, strict=True), strict=True):
            yield Sample(event, step, epoch, time_s, dict(zip(names, row, strict=True)))


class _Pattern(NamedTuple):
    """What finds lines of a shape: as many as follow each other, and the numbers of each."""

    shape: LineShape
    run: re.Pattern[str]
    line: re.Pattern[str]

    @classmethod
    def of(cls, shape: LineShape) -> _Pattern:
        return cls(shape, re.compile(f"(?:{_pattern(shape, '(?:')})+"), re.compile(_pattern(shape)))


class LikeLines:
    """The shapes of the samples of a log; each that JSON has read and `learn` has been shown may add one."""

    def __init__(self) -> None:
        self._patterns: list[_Pattern] = []
        self._seen: Counter[LineShape] = Counter()

    def split(self, block: bytes) -> Iterator[Rows | bytes]:
        """The lines of a block in order: those of a known shape in one piece, each other one as it is, for JSON."""
        text, start = block.decode("ascii", "replace"), 0  # a character for each byte
        while start < len(text):
            found, end = self._find(text, start)
            rows = None if found is None else rows_of(found.shape, found.line.findall(text, start, end))
            if rows is not None:
                yield rows
                start = end
            while start < end:
                after = block.find(b"\n", start) + 1 or len(block)
                yield block[start:after]
                start = after

    def learn(self, sample: Sample) -> None:
        """JSON has read this one."""
        if len(self._patterns) == _MOST_PATTERNS or sample.device is not None or not sample.values:
            return
        if len(self._seen) == _MOST_SHAPES:  # they are made up
            self._seen.clear()
        shape = LineShape(sample.event, tuple(sample.values))
        self._seen[shape] += 1
        if self._seen[shape] == _WORTH_IT:
            self._patterns.append(_Pattern.of(shape))

    def _find(self, text: str, start: int) -> tuple[_Pattern | None, int]:
        """What finds the next lines, and where they end; None and the end of the next line if nothing does."""
        for place, pattern in enumerate(self._patterns):
            found = pattern.run.match(text, start)
            if found is not None:
                if place:  # most often the next line is like this one
                    self._patterns.insert(0, self._patterns.pop(place))
                return pattern, found.end()
        return None, text.find("\n", start) + 1 or len(text)


def rows_of(shape: LineShape, found: Sequence[tuple[str, ...]]) -> Rows | None:
    """The rows of lines, of each its numbers as text; None if one of them is no number, or none of a machine."""
    steps, epochs, *columns = zip(*found, strict=True)
    has_epoch = epochs[0] != "null"  # a loop has none, or has one at each step
    if not has_epoch and epochs.count("null") < len(epochs):
        return None
    try:
        whole_steps = list(map(int, steps))
        numbers = [list(map(float, column)) for column in (columns if not has_epoch else (epochs, *columns))]
    except ValueError:
        return None
    in_range = [-MOST <= min(column) <= max(column) <= MOST for column in numbers]  # 1e999 is infinite
    if not all(in_range) or max(map(abs, whole_steps)) > MOST:
        return None
    times_s, *values = numbers[has_epoch:]
    return Rows(shape, whole_steps, numbers[0] if has_epoch else [None] * len(steps), times_s, values)


def _pattern(shape: LineShape, group: str = "(") -> str:
    """That of a line as `jsonl.sample_line` writes it, its numbers in groups.

    >>> line = '{"type":"sample","event":"e","step":1,"epoch":null,"time_s":2,"values":{"a":3e2}}'
    >>> re.fullmatch(_pattern(LineShape("e", ("a",))), line + "\\n").groups()
    ('1', 'null', '2', '3e2')
    """
    number = f"{group}{_NUMBER})"
    values = ",".join(f"{re.escape(json.dumps(name))}:{number}" for name in shape.names)
    return (
        rf'\{{"type":"sample","event":{re.escape(json.dumps(shape.event))},"step":{number},"epoch":{group}null|{_NUMBER}),'
        rf'"time_s":{number},"values":\{{{values}\}}\}}\n'
    )
