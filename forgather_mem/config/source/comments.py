"""Finds where a `##` comment begins in a line, respecting quotes, YAML literals and Jinja tags.

A `Scanner` reads the lines of one template in order. It tracks only what it needs for that: whether it begins inside a
quoted scalar, a block literal, a Jinja tag, a Jinja comment or a raw section. A quoted scalar spans several lines only
if its end is found, so that a stray quote in prose hides at most its own line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

STATEMENT = re.compile(r"\s*(--|<<|>>|==|=>)\s(.*)")
_BLOCK_TAG = re.compile(r"\s*(?:block|endblock)\b")
_LITERAL = re.compile(r"(?:^|\s)[|>][-+0-9]{0,2}(?:\s+#.*)?$")
_WORD = re.compile(r"\S+")
# A line without any of these changes nothing, here or in syntax.py: comments, Jinja, blocks, statements, literals.
_SPECIAL = re.compile(r"[#{\"'\[]|^\s*(?:--|<<|>>|==|=>)\s|[|>][-+0-9]*\s*$")
_SPECIAL_WITHOUT_COMMENTS = re.compile(r"[{\[]|^\s*(?:--|<<|>>|==|=>)\s")
_MAX_QUOTED_LINES = 100

# What a line can be inside of, and what to look for there. "" is plain YAML, "~" a line statement.
_STOPS = {
    "": re.compile(r"\{[{%#]|[\"']|#+"),
    'yaml"': re.compile(r"\{[{%#]|(?:\\.)+|\""),
    "yaml'": re.compile(r"\{[{%#]|''|'"),
    "text": re.compile(r"\{[{%#]"),  # a line of a literal
    "{{": re.compile(r"}}|[{\"']|#+"),
    "{%": re.compile(r"%}|[{\"']|#+"),
    "~": re.compile(r"[{\"']|#+"),
    "brace": re.compile(r"[{}\"']|#+"),
    'string"': re.compile(r"\\.|\""),
    "string'": re.compile(r"\\.|'"),
    "{#": re.compile(r"#}"),
    "raw": re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%}"),
}
_JINJA = ("{{", "{%", "{#", "~", "brace", "raw", 'string"', "string'")


class Scanner:
    """Reads lines in order and finds their comments.

    Args:
        lines: All lines of the template. Call `cut` for each of them, in order; while `is_calm`, lines without a match
            of `special` may be skipped.

    Attributes:
        special: Matches whatever may change the state in a line that begins inside nothing.
        is_calm: The next line begins inside nothing.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._number = 0
        # Without a comment anywhere, quotes and literals need not be followed.
        self._has_comments = any("##" in line for line in lines)
        self.special = _SPECIAL if self._has_comments else _SPECIAL_WITHOUT_COMMENTS
        self.is_calm = True
        self._inside: list[str] = []  # what the next line begins in, outermost first
        self._literal: int | None = None  # it may belong to a block literal of a key with this indent

    @property
    def inside_jinja(self) -> bool:
        """Whether the next line belongs to a Jinja tag, comment or raw section that an earlier line opened."""
        return bool(self._inside) and self._inside[-1] in _JINJA

    def cut(self, number: int) -> int | None:
        """Index of the first `#` of a line's comment, or None."""
        self._number = number
        found = self._cut(self._lines[number])
        self.is_calm = not self._inside and self._literal is None
        return found

    def _cut(self, line: str) -> int | None:
        if self._inside:
            found = self._scan(line, 0)
            if self._inside == ["text"]:
                self._inside.clear()
            return found
        statement = STATEMENT.fullmatch(line)
        if self._in_literal(line, statement) and not statement:
            return self._within("text", line, 0)
        stripped = line.lstrip()
        if stripped.startswith("##"):
            return len(line) - len(stripped)
        if statement:
            return self._within("~", line, statement.start(2))
        found = self._scan(line, 0)
        if self._has_comments and not self._inside:
            self._open_literal(line if found is None else line[:found])
        return found

    def _within(self, mode: str, line: str, at: int) -> int | None:
        """Scan a line that lies entirely inside something that ends with it."""
        self._inside.append(mode)
        found = self._scan(line, at)
        if mode == "~" or self._inside == [mode]:
            self._inside.clear()
        return found

    def _scan(self, line: str, at: int) -> int | None:
        inside = self._inside
        commented = False  # after a single `#`, quotes mean nothing
        opened_at = 0
        while True:
            mode = inside[-1] if inside else ""
            stop = _STOPS[mode].search(line, at)
            if stop is None:
                return None
            found, at = stop[0], stop.end()
            before = line[stop.start() - 1 : stop.start()]
            if found[0] == "#" and found != "#}":
                if not before or before.isspace():
                    if len(found) > 1:
                        return stop.start()
                    commented = commented or not mode
            elif found in ("{{", "{%", "{#"):
                inside.append(found)
                opened_at = at
            elif mode in ("{{", "{%") and found in ("}}", "%}"):
                inside.pop()
                if found == "%}" and line[opened_at : stop.start()].strip("-+ \t") == "raw":
                    inside.append("raw")
            elif found == "{":
                inside.append("brace")
            elif mode == "" and found in "\"'":
                starts = not before or before.isspace() or before in "[{,:("
                if starts and not commented and self._ends(found, at):
                    inside.append("yaml" + found)
            elif mode in ("{{", "{%", "~", "brace") and found in "\"'":
                inside.append("string" + found)
            elif found[0] != "\\" and found != "''":
                inside.pop()

    def _ends(self, quote: str, at: int) -> bool:
        """Whether a scalar that begins with this quote also ends, on this line or on a more indented one."""
        line = self._lines[self._number]
        if line.find(quote, at) >= 0:  # a copy of the rest for each quote would take quadratic time
            return True
        indent = indent_of(line)
        for later in self._lines[self._number + 1 : self._number + 1 + _MAX_QUOTED_LINES]:
            if later.strip() and indent_of(later) <= indent:
                return False
            if quote in later:
                return True
        return False

    def _in_literal(self, line: str, statement: re.Match[str] | None) -> bool:
        if self._literal is None:
            return False
        if not line.strip() or indent_of(line) > self._literal:
            return True
        # A statement prints nothing itself, so it does not end the literal; a block does: its content may be printed
        # somewhere else.
        if statement and not _BLOCK_TAG.match(statement[2]):
            return True
        self._literal = None
        return False

    def _open_literal(self, line: str) -> None:
        """If this line ends with the `|` or `>` of a block literal, remember that the next lines belong to it."""
        line = line.rstrip()
        match = _LITERAL.search(line)
        if match is None:
            return
        words = [(word.start(), word[0]) for word in _WORD.finditer(line, 0, match.start())]
        column = -1
        while words and words[0][1] in ("-", "?"):
            column = words.pop(0)[0]
        plain = [word for _, word in words if word[0] not in "!&"]
        if plain:
            self._literal = words[0][0] if plain[-1].endswith(":") else None
        elif words or column >= 0:
            self._literal = column


def indent_of(line: str) -> int:
    """How many blanks a line begins with."""
    return len(line) - len(line.lstrip())
