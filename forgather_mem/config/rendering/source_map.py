"""The source map: where each position of a rendered text comes from.

The template is rendered once more, this time with a marker before every piece of text that a template line printed.
This is exact through inheritance, loops, macros and filters, and costs nothing until it is needed, which is when there
is an error to report.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from forgather_mem.config.source.loader import Source
from forgather_mem.config.source.rendered import ORIGIN, TOKEN, SourceLocation


@dataclass(frozen=True, slots=True)
class MapLimits:
    """Characters of a text that has a source map, and of a piece and its line that are looked at to find a column."""

    text: int = 1_000_000
    piece: int = 200
    line: int = 20_000


MAP_LIMITS = MapLimits()


@dataclass(frozen=True, slots=True)
class Origin:
    """One template of a source map: its source, its blocks by their number from 1, and how it was reached."""

    source: Source
    block_names: Sequence[str]
    chain: Sequence[str]


@dataclass(frozen=True)
class SourceMap:
    """Of each piece of a text where it comes from.

    Attributes:
        text: The rendered text.
        starts: Where each piece begins.
        pieces: For each the number of its template, its line, and the number of its block.
        origins: The templates.
    """

    text: str
    starts: Sequence[int]
    pieces: Sequence[Sequence[int]]
    origins: Sequence[Origin]

    def place(self, line: int, column: int) -> SourceLocation | None:
        """Origin of a position in the rendered text; None if nothing was printed."""
        if not self.starts:
            return None
        line = min(max(line, 1), len(self._line_starts))
        offset = min(self._line_starts[line - 1] + max(column, 1) - 1, len(self.text))
        index = max(bisect_right(self.starts, offset) - 1, 0)
        number, source_line, block = self.pieces[index]
        origin = self.origins[number]
        source = origin.source
        chain = [*([f"in block {origin.block_names[block - 1]}"] if block else []), *origin.chain]
        begin = self.starts[index]
        end = self.starts[index + 1] if index + 1 < len(self.starts) else len(self.text)
        piece = self.text[begin : min(end, begin + MAP_LIMITS.piece)].split("\n", 1)[0]
        written = source.lines[source_line - 1] if source_line <= len(source.lines) else ""
        at = written.find(piece, 0, MAP_LIMITS.line) if piece.strip() else 0
        found = at + offset - begin + 1 if at >= 0 else None
        return source.place(source_line, found, chain, len(origin.chain))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]


class Tracer:
    """Locates positions by a source map, which is made when the first one is asked for.

    Args:
        make: Makes the map.
        start: The location where there is no map.
    """

    def __init__(self, make: Callable[[], SourceMap | None], start: SourceLocation) -> None:
        self._make = make
        self.start = start

    @cached_property
    def map(self) -> SourceMap | None:
        """The map; None if there is none."""
        return self._make()

    def __call__(self, line: int, column: int) -> SourceLocation:
        return (self.map.place(line, column) if self.map else None) or self.start


def source_map(
    text: str, values: Mapping[str, str], marked_text: str, marked_values: Mapping[str, str], origins: Sequence[Origin]
) -> SourceMap | None:
    """The map of a rendered text; None if the second render gave another one.

    Args:
        text: As it was rendered.
        values: Its tokens.
        marked_text: The same text with markers.
        marked_values: The tokens of `marked_text`.
        origins: The templates, by their number in markers.
    """
    tokens = {text: token for token, text in values.items()}
    marked_text = TOKEN.sub(lambda m: tokens.get(marked_values.get(m[0], ""), m[0]), marked_text)
    starts: list[int] = []
    pieces: list[tuple[int, int, int]] = []
    parts = ORIGIN.split(marked_text)
    if "".join(parts[::4]) != text:
        return None
    length = len(parts[0])
    for number, line, block, piece in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
        if piece:
            starts.append(length)
            pieces.append((int(number), int(line), int(block)))
            length += len(piece)
    return SourceMap(text, starts, pieces, origins)
