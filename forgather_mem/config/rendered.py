"""What does a template give: text, the values from outside that stand in it, and where each line comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forgather_mem.config.places import STRING, Place
from forgather_mem.config.tokens import TOKEN, TOKEN_OPEN
from forgather_mem.errors import TemplateError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered template.

    Attributes:
        name: Name of the template that was asked for, or "<string>".
        text: The text, values from outside standing in it as tokens.
        values: Token to the text of the value that belongs there.
        locate: Takes a 1-based line and column of `text` to their origin.
        unknown_blocks: Blocks of child templates that no parent has; what they hold is not in `text`.
    """

    name: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    locate: Callable[[int, int], Place]
    unknown_blocks: tuple[TemplateError, ...] = ()

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
    def as_is(cls, text: str, name: str = STRING) -> Rendered:
        """A text that needs no rendering: every line comes from itself."""
        lines: list[str] = []

        def locate(line: int, column: int) -> Place:
            if not lines:
                lines.extend(text.split("\n"))
            return Place(name, line, column, lines[line - 1] if 0 < line <= len(lines) else None, None)

        return cls(name=name, text=text, locate=locate)
