"""Tokens for text that came from outside, and markers for the template line that other text came from.

A value from outside is data: neither Jinja nor YAML may read it as template text. So a text never contains its
characters but a *token* that nobody can guess; the parser puts the value back after YAML has been read. The same texts
carry *origins* when a template is rendered for its source map: a marker before each piece names its template and line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from jinja2.exceptions import TemplateRuntimeError

from forgather_mem.config.rendering.taint import Piece, TaintedStr
from forgather_mem.config.source.tokens import ORIGIN_CLOSE, ORIGIN_OPEN, RESERVED, TOKEN, TOKEN_CLOSE, TOKEN_OPEN

_MARK = re.compile(f"({TOKEN_OPEN}[0-9a-f_]+{TOKEN_CLOSE}|{ORIGIN_OPEN}[0-9.]+{ORIGIN_CLOSE})")

_TAG = re.compile(rf"(?<![^\s\[{{,{ORIGIN_CLOSE}])![A-Za-z]\S*")
_NAME_PART = re.compile(r"[A-Za-z0-9_./~+-]+")


class Mangled(TemplateRuntimeError):
    """A token was cut or changed."""


class TaintTokens:
    """The strings from outside in the current render, each with its token."""

    __slots__ = ("_by_text", "_kept", "_last", "_secret", "by_token")

    def __init__(self, secret: str = "") -> None:
        self._secret = secret or os.urandom(12).hex()
        self._last = 0
        self._kept: dict[str, str] = {}
        self.by_token: dict[str, str] = {}
        self._by_text: dict[str, str] = {}

    def keep(self) -> None:
        """Keep the current strings, those of global variables, for all renders."""
        self._kept = dict(self.by_token)

    def reset(self) -> None:
        """Forget the strings of the last render."""
        self.by_token = dict(self._kept)
        self._by_text = {text: token for token, text in self._kept.items()}

    def in_tags(self, text: str) -> str:
        """The text with values inside a tag's name filled in, as in `!call:{{ folder }}/file.py:name`.

        A tag is not a scalar, so nothing could be put back there later. Only paths and names are filled in: letters,
        digits and `_./~+-`, which YAML can't read as anything else, and which can't end one part of the tag and begin
        another. The policy decides which names may be used, as everywhere.
        """

        def name_part(match: re.Match[str]) -> str:
            value = self.by_token.get(match[0], "")
            return value if _NAME_PART.fullmatch(value) else match[0]

        return _TAG.sub(lambda tag: TOKEN.sub(name_part, tag[0]), text) if TOKEN_OPEN in text else text

    def used(self, text: str) -> dict[str, str]:
        """The strings that occur in a text, by token.

        Raises:
            Mangled: if a damaged token is left.
        """
        if all(char not in text for char in RESERVED):
            return {}
        found = {token: self.by_token[token] for token in TOKEN.findall(text) if token in self.by_token}
        rest = TOKEN.sub(lambda match: "" if match[0] in found else match[0], text)
        for line in rest.split("\n"):
            if not RESERVED.isdisjoint(line):
                shown = "".join("?" if char in RESERVED else char for char in line.strip())
                raise Mangled(f"a value from outside was changed in a way that can't be tracked: {shown[:80]!r}")
        return found

    def token(self, text: str) -> str:
        """The token for a string from outside."""
        token = self._by_text.get(text)
        if token is None:
            self._last += 1
            token = f"{TOKEN_OPEN}{self._secret}_{self._last}{TOKEN_CLOSE}"
            self._by_text[text] = token
            self.by_token[token] = text
        return token

    def mark(self, text: str) -> str:
        """A string from outside, tainted as a whole."""
        return TaintedStr([(text, True, "")], self)

    def read(self, text: str) -> str:
        """The string that a text with tokens and origins stands for; the text itself if it has none."""
        if TOKEN_OPEN not in text and ORIGIN_OPEN not in text:
            return text
        pieces: list[Piece] = []
        origin = ""
        for part in _MARK.split(text):
            if part[:1] == ORIGIN_OPEN and part[-1] == ORIGIN_CLOSE:
                origin = part
            elif part in self.by_token:
                pieces.append((self.by_token[part], True, origin))
            else:
                pieces.append((part, False, origin))
        return self.build(pieces)

    def build(self, pieces: Iterable[Piece]) -> str:
        """A string of these pieces: tainted if necessary, else a plain one."""
        kept = [piece for piece in pieces if piece[0] or piece[1]]  # an empty string from outside is data too
        if any(outside or origin for _, outside, origin in kept):
            return TaintedStr(kept, self)
        return "".join(piece[0] for piece in kept)
