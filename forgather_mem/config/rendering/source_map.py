"""The source map: where each position of a rendered text comes from.

The template is rendered once more, this time with a marker before every piece of text that a template line printed.
This is exact through inheritance, loops, macros and filters, and costs nothing until it is needed, which is when there
is an error to report.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from forgather_mem.config.rendering.compiler import Compiled, Job
from forgather_mem.config.source.location import SourceLocation
from forgather_mem.config.source.tokens import ORIGIN, TOKEN

_MAX_PIECE, _MAX_LINE = 200, 20_000  # characters that are looked at to find a column


class Origins:
    """The source map of one rendered text.

    Args:
        text: The text as it was rendered.
        values: Its tokens.
        marked_text: The same text with markers.
        marked_values: The tokens of `marked_text`.
        numbered: The templates, by their number in markers.
        job: The second render.
    """

    def __init__(
        self,
        text: str,
        values: Mapping[str, str],
        marked_text: str,
        marked_values: Mapping[str, str],
        numbered: Sequence[Compiled],
        job: Job,
    ) -> None:
        tokens = {text: token for token, text in values.items()}
        marked_text = TOKEN.sub(lambda m: tokens.get(marked_values.get(m[0], ""), m[0]), marked_text)
        self._starts: list[int] = []
        self._origins: list[tuple[int, int, int]] = []
        plain: list[str] = []
        length = 0
        parts = ORIGIN.split(marked_text)
        plain.append(parts[0])
        length += len(parts[0])
        for number, line, block, piece in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
            if piece:
                self._starts.append(length)
                self._origins.append((int(number), int(line), int(block)))
                plain.append(piece)
                length += len(piece)
        self.is_exact = "".join(plain) == text
        self._text = text
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._numbered = numbered
        self._job = job

    def place(self, line: int, column: int) -> SourceLocation | None:
        """Origin of a position in the rendered text; None if nothing was printed."""
        line = min(max(line, 1), len(self._line_starts))
        offset = min(self._line_starts[line - 1] + max(column, 1) - 1, len(self._text))
        index = bisect_right(self._starts, offset) - 1
        if not self._starts:
            return None
        index = max(index, 0)
        number, source_line, block = self._origins[index]
        compiled = self._numbered[number]
        source = compiled.source
        name = compiled.block_names[block]
        chain = [f"in block {name}"] if name else []
        chain += self._job.chain(source.key)
        end = self._starts[index + 1] if index + 1 < len(self._starts) else len(self._text)
        begin = self._starts[index]
        piece = self._text[begin : min(end, begin + _MAX_PIECE)].split("\n", 1)[0]
        written = source.lines[source_line - 1] if source_line <= len(source.lines) else ""
        at = written.find(piece, 0, _MAX_LINE) if piece.strip() else 0
        found = at + offset - self._starts[index] + 1 if at >= 0 else None
        return source.place(source_line, found, ", ".join(chain) or None)
