"""What text does a template give, and where does each line of it come from?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forgather_mem.config.places import Place

TOKEN_OPEN, TOKEN_CLOSE = "\uf4c1", "\uf4c2"  # private use: no template has them, YAML prints them
TOKEN = re.compile(f"{TOKEN_OPEN}[0-9a-z]+{TOKEN_CLOSE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered template.

    Attributes:
        name: Name of the template that was asked for, or "<string>".
        text: The text, values from outside standing in it as tokens.
        values: Token to the text of the value that belongs there.
        locate: Takes a 1-based line and column of `text` to their origin.
    """

    name: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    locate: Callable[[int, int], Place]

    @property
    def shown(self) -> str:
        """The text with the values in place, for people: YAML may read it differently."""
        return self.put_back(self.text)

    def has_value(self, text: str) -> bool:
        """Whether a value from outside stands in a piece of the text."""
        return TOKEN_OPEN in text and bool(self.values)

    def put_back(self, text: str) -> str:
        """A piece of the text with the values from outside in place of their tokens."""
        if not self.has_value(text):
            return text
        return TOKEN.sub(lambda match: self.values.get(match[0], match[0]), text)

    def place(self, line: int, column: int = 1) -> Place:
        """Where a position of the rendered text (both numbers 1-based) comes from."""
        return self.locate(line, column)

    @classmethod
    def as_is(cls, text: str, name: str = "<string>") -> Rendered:
        """A text that needs no rendering: every line comes from itself."""
        lines = text.split("\n")

        def locate(line: int, column: int) -> Place:
            return Place(name, line, column, lines[line - 1] if 0 < line <= len(lines) else None, None)

        return cls(name=name, text=text, locate=locate)
