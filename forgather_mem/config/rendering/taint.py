"""Strings from outside, and what templates make of them.

A value from outside is data: neither Jinja nor YAML may read it as template text. So a rendered text never contains its
characters but a *token* that nobody can guess; the parser puts the value back after YAML has been read. To code unaware
of taint a tainted string is its text with the tokens in place: such code may mangle a value but can't smuggle it in.

The methods of a tainted string work on the string that is meant. Putting strings together, cutting and trimming them
and what changes each character by itself keep apart which characters came from outside; of anything else the whole
result is tainted. The same strings carry *origins* when a template is rendered for its source map: a marker before each
piece names its template and line.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex, TypeAlias

from jinja2.exceptions import TemplateRuntimeError

from forgather_mem.config.source.rendered import ORIGIN_CLOSE, ORIGIN_OPEN, RESERVED, TOKEN, TOKEN_CLOSE, TOKEN_OPEN

# Characters, whether they came from outside, and the origin marker ("" if origins are not kept).
Piece: TypeAlias = tuple[str, bool, str]

_MARK = re.compile(f"({TOKEN_OPEN}[0-9a-f_]+{TOKEN_CLOSE}|{ORIGIN_OPEN}[0-9.]+{ORIGIN_CLOSE})")
_TAG = re.compile(rf"(?<![^\s\[{{,{ORIGIN_CLOSE}])![A-Za-z]\S*")
_NAME_PART = re.compile(r"[A-Za-z0-9_./~+-]+")


class Mangled(TemplateRuntimeError):
    """A token was cut or changed."""


class TaintTokens:
    """The strings from outside in the current render, each with its token."""

    __slots__ = ("_by_text", "_last", "_secret", "by_token")

    def __init__(self, secret: str = "") -> None:
        self._secret = secret or os.urandom(12).hex()
        self._last = 0
        self.by_token: dict[str, str] = {}
        self._by_text: dict[str, str] = {}

    def reset(self) -> None:
        """Forget the strings of the last render."""
        self.by_token.clear()
        self._by_text.clear()

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

    def mark(self, made: Any, origin: str = "") -> Any:
        """A string from outside, tainted as a whole; of a list or a tuple each string in it."""
        if type(made) in (list, tuple):
            return type(made)(self.mark(item, origin) for item in made)
        return TaintedStr([(str(made), True, origin)], self) if isinstance(made, str) else made

    def lifted(self, text: str) -> TaintedStr:
        """The same string, whose methods keep the taint of their arguments."""
        return text if isinstance(text, TaintedStr) else TaintedStr([(text, False, "")], self)

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


class TaintedStr(str):
    """A string that knows which of its characters came from outside. Made by `TaintTokens`."""

    __slots__ = ("_marks", "pieces", "real")
    pieces: list[Piece]
    real: str
    _marks: TaintTokens

    def __new__(cls, pieces: list[Piece], marks: TaintTokens) -> TaintedStr:
        last = ""
        text = []
        for chars, outside, origin in pieces:
            if origin != last:
                text.append(origin)
                last = origin
            text.append(marks.token(chars) if outside else chars)
        self = super().__new__(cls, "".join(text))
        self.pieces = pieces
        self.real = "".join(piece[0] for piece in pieces)
        self._marks = marks
        return self

    def _cut(self, start: int, stop: int) -> str:
        """The characters from `start` to `stop`, taint kept."""
        cut: list[Piece] = []
        at = 0
        for chars, outside, origin in self.pieces:
            part = chars[max(start - at, 0) : max(stop - at, 0)]
            if part or (not chars and start <= at <= stop):
                cut.append((part, outside, origin))
            at += len(chars)
        return self._marks.build(cut or [("", *self.pieces[0][1:])])

    def indented(self, indent: str, first: bool, blank: bool) -> str:
        """The lines indented, empty ones only if `blank`; what is inserted has the origin of its newline."""
        pieces: list[Piece] = [(indent, False, self.pieces[0][2])] if first else []
        begins = False
        for chars, outside, origin in self.pieces:
            if not chars:
                pieces.append((chars, outside, origin))
            for line in chars.splitlines(keepends=True):
                if begins and (blank or line.strip("\n")):
                    pieces.append((indent, pieces[-1][1], origin))
                pieces.append((line, outside, origin))
                begins = line.endswith("\n")
        if blank and begins:
            pieces.append((indent, *pieces[-1][1:]))
        return self._marks.build(pieces)

    def __repr__(self) -> str:
        quoted = self._marks.build([(_escaped(c, outside), outside, o) for c, outside, o in self.pieces])
        return f"'{quoted}'"

    def __add__(self, other: str) -> str:
        return self._marks.build([*self.pieces, *_pieces(other)])

    def __radd__(self, other: str) -> str:
        return self._marks.build([*_pieces(other), *self.pieces])

    def __mul__(self, times: SupportsIndex) -> str:
        return self._marks.build(self.pieces * times)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        start, stop, step = (key if isinstance(key, slice) else slice(key, None)).indices(len(self.real))
        made = self.real[key]
        return self._cut(start, stop if isinstance(key, slice) else start + 1) if step == 1 else self._whole(made)

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self.real)))

    def join(self, parts: Iterable[str]) -> str:
        return self._marks.read(str(self).join(map(str, parts)))

    def lstrip(self, chars: str | None = None) -> str:
        return self._cut(len(self.real) - len(self.real.lstrip(text_of(chars))), len(self.real))

    def rstrip(self, chars: str | None = None) -> str:
        return self._cut(0, len(self.real.rstrip(text_of(chars))))

    def strip(self, chars: str | None = None) -> str:
        return self._marks.lifted(self.lstrip(chars)).rstrip(chars)

    def _whole(self, made: Any, *others: object) -> Any:
        """What was made of this string and others in a way that can't be tracked: all of it is tainted if any of them
        was."""
        if is_tainted(self) or is_tainted(others):
            return self._marks.mark(made, self.pieces[0][2])
        return self._marks.build([(made, False, self.pieces[0][2])]) if isinstance(made, str) else made


def _method(name: str, *, by_character: bool) -> Callable[..., Any]:
    """A method of a string on the string that is meant; the taint of what it makes is kept."""
    method = getattr(str, name)

    def run(self: TaintedStr, *args: Any, **kwargs: object) -> Any:
        real_args = untaint(args)
        made = method(self.real, *real_args, **untaint(kwargs))
        if by_character and not is_tainted(args):
            pieces = [(method(chars, *real_args, **kwargs), *kind) for chars, *kind in self.pieces]
            if "".join(piece[0] for piece in pieces) == made:
                return self._marks.build(pieces)
        return self._whole(made, args, kwargs)

    run.__name__ = name  # the sandbox checks it
    return run


_BY_CHARACTER = "upper lower casefold swapcase replace __format__"
_AT_ONCE = (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __contains__ __mod__ capitalize center "
    "count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
    "isprintable isspace istitle isupper ljust partition removeprefix removesuffix rfind rindex rjust rpartition "
    "rsplit split splitlines startswith title zfill"
)
for _name in f"{_BY_CHARACTER} {_AT_ONCE}".split():
    setattr(TaintedStr, _name, _method(_name, by_character=_name in _BY_CHARACTER.split()))


def text_of(value: object) -> Any:
    """The real string of a tainted one; any other value unchanged."""
    return value.real if isinstance(value, TaintedStr) else value


def untaint(value: object) -> Any:
    """The value with every tainted string in it, also inside lists and dicts, replaced by its real string."""
    if isinstance(value, TaintedStr):
        return value.real
    if isinstance(value, list | tuple):
        return type(value)(map(untaint, value)) if type(value) in (list, tuple) else [*map(untaint, value)]
    if isinstance(value, dict):
        return {untaint(key): untaint(item) for key, item in value.items()}
    return value


def is_tainted(value: object) -> bool:
    """Whether a value contains characters from outside, also deep inside lists and dicts."""
    if isinstance(value, TaintedStr):
        return any(piece[1] for piece in value.pieces)
    if isinstance(value, list | tuple):
        return any(map(is_tainted, value))
    if isinstance(value, dict):
        return any(map(is_tainted, value)) or any(map(is_tainted, value.values()))
    return False


def _pieces(text: str) -> list[Piece]:
    return text.pieces if isinstance(text, TaintedStr) else [(str(text), False, "")]


def _escaped(text: str, outside: bool) -> str:
    return text if outside else "".join("\\'" if c == "'" else repr(c)[1:-1] for c in text)


_SHORT = 100  # characters of what is kept


def write(value: object) -> str:
    """A value of plain types in YAML's flow style, with tokens for strings from outside.

    >>> write({"lr": 1e-4, "tags": ["a", "1"], "seed": None})
    "{lr: 0.0001, seed: null, tags: [a, '1']}"

    Raises:
        TemplateRuntimeError: for a value of another type.
    """
    if isinstance(value, int):
        return str(value)
    if isinstance(value, TaintedStr):  # it may stand in a list
        return _dumped([value])[1:-1]
    return (_short if type(value) in (str, float) and len(str(value)) < _SHORT else _dumped)(value)


def _dumped(value: object) -> str:
    import yaml  # when it is needed: a process that renders has little time to start

    class Flow(yaml.SafeDumper):
        """Writes shared lists out each time: an anchor could clash with another in the template."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    try:
        text: str = yaml.dump(
            _plain(value), Dumper=Flow, sort_keys=False, default_flow_style=True, allow_unicode=True, width=float("inf")
        )
    except yaml.YAMLError as error:
        raise TemplateRuntimeError(f"toyaml can't write this value: {str(error).splitlines()[0]}") from error
    return text.strip().removesuffix("...").removesuffix("\n")


_short = functools.lru_cache(maxsize=1_000, typed=True)(_dumped)  # it takes a quarter of a ms even for a short string


def _plain(value: object) -> object:
    if isinstance(value, TaintedStr):
        return str(value)
    if isinstance(value, dict):
        with contextlib.suppress(TypeError):  # keys of several types keep their order
            value = dict(sorted(value.items(), key=lambda pair: text_of(pair[0])))
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
