"""Reads lines of a log that differ in their numbers alone, as columns: in a third of the time of JSON and records."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from forgather_mem.telemetry.bounds import MOST
from forgather_mem.telemetry.records import Sample

# So many samples with the same names before their pattern is compiled, which takes a millisecond; so many patterns
_WORTH_IT, _MOST_PATTERNS, _MOST_SHAPES = 64, 16, 1000
MOST_ROWS = 1000
_NUMBER = "([-+.0-9eE]+)"


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


class LikeLines:
    """The shapes of the samples of a log; each that JSON has read and `learn` has been shown may add one."""

    def __init__(self) -> None:
        self._patterns: list[tuple[Callable[[str], re.Match[str] | None], LineShape]] = []
        self._seen: Counter[LineShape] = Counter()

    def match(self, line: bytes) -> tuple[LineShape, re.Match[str]] | tuple[None, bytes]:
        """A line that fits a shape, with its numbers; None and the line itself if it fits none, which JSON may read."""
        text = line.decode("ascii", "replace")
        for place, (fits, shape) in enumerate(self._patterns):
            found = fits(text)
            if found is not None:
                if place:  # most often the next line is like this one
                    self._patterns.insert(0, self._patterns.pop(place))
                return shape, found
        return None, line

    def learn(self, sample: Sample) -> None:
        """JSON has read this one."""
        if len(self._patterns) == _MOST_PATTERNS or sample.device is not None or not sample.values:
            return
        if len(self._seen) == _MOST_SHAPES:  # they are made up
            self._seen.clear()
        shape = LineShape(sample.event, tuple(sample.values))
        self._seen[shape] += 1
        if self._seen[shape] == _WORTH_IT:
            self._patterns.append((re.compile(_pattern(shape)).fullmatch, shape))


def rows_of(shape: LineShape, found: Iterable[re.Match[str]]) -> Rows | None:
    """The rows of lines that fit a shape; None if one of them holds what is no number, or none of a machine."""
    texts = [text for one in found for text in one.groups()]
    width = 3 + len(shape.names)
    has_epoch = texts[1] != "null"  # a loop has none, or has one at each step
    try:
        if not has_epoch:
            texts[1::width] = ["0" if text == "null" else "" for text in texts[1::width]]
        numbers = list(map(float, texts))
        if not max(map(abs, numbers)) <= MOST:  # 1e999 is infinite
            return None
        steps = list(map(int, texts[::width]))
    except ValueError:
        return None
    epochs = numbers[1::width] if has_epoch else [None] * len(steps)
    return Rows(shape, steps, epochs, numbers[2::width], [numbers[place::width] for place in range(3, width)])


def _pattern(shape: LineShape) -> str:
    """That of a line as `jsonl.sample_line` writes it.

    >>> line = '{"type":"sample","event":"e","step":1,"epoch":null,"time_s":2,"values":{"a":3e2}}'
    >>> re.fullmatch(_pattern(LineShape("e", ("a",))), line + "\\n").groups()
    ('1', 'null', '2', '3e2')
    """
    values = ",".join(f"{re.escape(json.dumps(name))}:{_NUMBER}" for name in shape.names)
    return (
        rf'\{{"type":"sample","event":{re.escape(json.dumps(shape.event))},"step":{_NUMBER},"epoch":(null|{_NUMBER[1:]},'
        rf'"time_s":{_NUMBER},"values":\{{{values}\}}\}}\n'
    )
