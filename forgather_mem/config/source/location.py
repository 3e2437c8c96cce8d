"""Source locations: where in which file a piece of a template is."""

from __future__ import annotations

from dataclasses import dataclass

from forgather_mem.errors import TemplateError

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
            message,
            template=self.template,
            line=self.line,
            column=self.column,
            path=path,
            hint=hint,
            source_line=self.source_line,
            chain=self.chain,
        )
