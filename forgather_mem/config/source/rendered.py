"""A rendered template: its text, the values from outside in it, and the origin of each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forgather_mem.errors import TemplateError

# Private-use characters: YAML prints them, and no template uses them for anything else.
TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE = "\uf4c1", "\uf4c2", "\uf4c3", "\uf4c4"
RESERVED = frozenset((TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE))
TOKEN = re.compile(f"{TOKEN_OPEN}[0-9a-f_]+{TOKEN_CLOSE}")
ORIGIN = re.compile(f"{ORIGIN_OPEN}([0-9]+)\\.([0-9]+)\\.([0-9]+){ORIGIN_CLOSE}")
MARK = re.compile(f"({TOKEN.pattern}|{ORIGIN_OPEN}[0-9.]+{ORIGIN_CLOSE})")


STRING = "<string>"
"""Name of a template given as text."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A position in the original text of a template, and how that text came to be loaded.

    Attributes:
        template: Name of the template, or "<string>".
        line: 1-based, in the original file.
        column: 1-based.
        source_line: The text of that line, None if unknown.
        chain: How it was reached, e.g. "in block callback_list, extended by configs/demo.yaml".
        level: By how many steps: 0 is the requested template itself, 1 what it uses.
    """

    template: str
    line: int
    column: int = 1
    source_line: str | None = None
    chain: str | None = None
    level: int = 0

    @property
    def block(self) -> str | None:
        """The block that it is in."""
        first = (self.chain or "").partition(", ")[0]
        return first.removeprefix("in block ") if first.startswith("in block ") else None

    def __str__(self) -> str:
        return f"{self.template}:{self.line}:{self.column}"

    def error(self, message: str, *, path: str | None = None, hint: str | None = None) -> TemplateError:
        """An error with `message` about this location; the caller raises it.

        >>> print(SourceLocation("a.yaml", 2, 5, "lr: 1e", None).error("no number", hint="write 1e-4"))
        a.yaml:2:5: no number
           2 | lr: 1e
             |     ^
          write 1e-4
        """
        return TemplateError(
            message, template=self.template, line=self.line, column=self.column, path=path, hint=hint,
            source_line=self.source_line, chain=self.chain,
        )  # fmt: skip


Reference: TypeAlias = tuple[int, str, str]
"""A template in use: its level (0: the requested one, 1: those that it uses), its name, its file or "" for a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered template.

    Attributes:
        name: Name of the requested template, or "<string>".
        text: The text, with tokens for values from outside.
        values: Maps each token to the text of its value.
        locate: Maps a 1-based line and column of `text` to their origin.
        unknown_blocks: Blocks of child templates that no parent has; their content is not in `text`.
        parent: Name of the template that it extends.
        mentioned: The names in expressions of its templates: of variables, and of parts of these.
        num_chars: Text of all its templates.
        references: Its templates, itself first.
    """

    name: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    locate: Callable[[int, int], SourceLocation]
    unknown_blocks: tuple[TemplateError, ...] = ()
    parent: str | None = None
    mentioned: frozenset[str] = frozenset()
    num_chars: int = 0
    references: Sequence[Reference] = ()

    @property
    def shown(self) -> str:
        """The text with the values filled in, for people: YAML may read it differently."""
        return self.put_back(self.text)

    def has_value(self, text: str) -> bool:
        """Whether a piece of the text contains a value from outside."""
        return TOKEN_OPEN in text and bool(self.values)

    def put_back(self, text: str) -> str:
        """A piece of the text with its tokens replaced by their values."""
        return TOKEN.sub(lambda match: self.values.get(match[0], match[0]), text)

    def place(self, line: int, column: int = 1) -> SourceLocation:
        """The origin of a position in the rendered text (line and column are 1-based)."""
        return self.locate(line, column)

    @classmethod
    def as_is(cls, text: str, name: str = STRING, file: str = "") -> Rendered:
        """A text that needs no rendering: each line is its own origin."""
        lines: list[str] = []

        def locate(line: int, column: int) -> SourceLocation:
            if not lines:
                lines.extend(text.split("\n"))
            return SourceLocation(name, line, column, lines[line - 1] if 0 < line <= len(lines) else None, None)

        return cls(name=name, text=text, locate=locate, num_chars=len(text), references=((0, name, file),))
