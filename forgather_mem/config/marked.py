"""Which characters of a text came from outside, and which line of a template did the others come from?

A value from outside is data: neither Jinja nor YAML may read it as template text. So its characters never
stand in a text. In their place stands a *token* that nobody can guess, and `Marked` is the string that holds
tokens: printed, joined or handed to anything that knows nothing of marks it is the text with the tokens (a
value can be mangled on the way, never smuggled in); compared, searched, cut or changed through its methods it
is the string a template means, and the result keeps its marks.

The same strings carry *origins* when a template is rendered for its source map: a marker in front of each
piece says which line of which template it is from.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex, TypeAlias

from jinja2.exceptions import TemplateRuntimeError

# Private use characters: YAML prints them, and no template has them for anything else.
TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE = "\uf4c1", "\uf4c2", "\uf4c3", "\uf4c4"
RESERVED = frozenset((TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE))
TOKEN = re.compile(f"{TOKEN_OPEN}[0-9a-f]+_[0-9]+{TOKEN_CLOSE}")
ORIGIN = re.compile(f"{ORIGIN_OPEN}([0-9]+)\\.([0-9]+)\\.([0-9]+){ORIGIN_CLOSE}")
_MARK = re.compile(f"({TOKEN_OPEN}[0-9a-f_]+{TOKEN_CLOSE}|{ORIGIN_OPEN}[0-9.]+{ORIGIN_CLOSE})")

# Characters, whether they are from outside, and the origin marker ("" when origins are not kept).
Piece: TypeAlias = tuple[str, bool, str]


class Mangled(TemplateRuntimeError):
    """A token was cut or changed."""


class Marks:
    """The strings from outside of the render in progress, each with its token."""

    __slots__ = ("_by_text", "_kept", "_last", "_secret", "by_token")

    def __init__(self) -> None:
        self._secret = secrets.token_hex(12)
        self._last = 0
        self._kept: dict[str, str] = {}
        self.by_token: dict[str, str] = {}
        self._by_text: dict[str, str] = {}

    def keep(self) -> None:
        """Keep the strings of now, those of global variables, for all renders."""
        self._kept = dict(self.by_token)

    def reset(self) -> None:
        """Forget the strings of the last render."""
        self.by_token = dict(self._kept)
        self._by_text = {text: token for token, text in self._kept.items()}

    def used(self, text: str) -> dict[str, str]:
        """Those that stand in a text, by token.

        Raises:
            Mangled: when something is left of a token that is none any more.
        """
        if all(char not in text for char in RESERVED):
            return {}
        found = {token: self.by_token[token] for token in TOKEN.findall(text) if token in self.by_token}
        rest = TOKEN.sub(lambda match: "" if match[0] in found else match[0], text)
        for line in rest.split("\n"):
            if not RESERVED.isdisjoint(line):
                shown = "".join("?" if char in RESERVED else char for char in line.strip())
                raise Mangled(f"a value from outside was changed in a way that can't be followed: {shown[:80]!r}")
        return found

    def token(self, text: str) -> str:
        """The token that stands for a string from outside."""
        token = self._by_text.get(text)
        if token is None:
            self._last += 1
            token = f"{TOKEN_OPEN}{self._secret}_{self._last}{TOKEN_CLOSE}"
            self._by_text[text] = token
            self.by_token[token] = text
        return token

    def mark(self, text: str) -> str:
        """A string from outside, marked as a whole."""
        return Marked([(text, True, "")], self)

    def read(self, text: str) -> str:
        """The string that a text with tokens and origins means; the same text when it has none."""
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
        """A string of these pieces: marked where that says anything, else a plain one."""
        kept = list(pieces)
        if len(kept) > 1:  # an empty string from outside is data too, but not beside something
            kept = [piece for piece in kept if piece[0]] or kept[:1]
        if any(outside or origin for _, outside, origin in kept):
            return Marked(kept, self)
        return "".join(piece[0] for piece in kept)


def _changed(name: str) -> Callable[..., str]:
    """A method that changes a string beyond following: the result is marked as a whole."""
    method = getattr(str, name)
    return lambda self, *args: self.whole(method(self.real, *unmarked(args)), *args)


def _asked(name: str) -> Callable[..., Any]:
    """A method that asks something about a string."""
    method = getattr(str, name)
    return lambda self, *args: method(self.real, *unmarked(args))


class Marked(str):
    """A string that knows which of its characters are from outside. Made by `Marks`."""

    __slots__ = ("_marks", "pieces", "real")
    pieces: list[Piece]
    real: str
    _marks: Marks

    def __new__(cls, pieces: list[Piece], marks: Marks) -> Marked:
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

    def cut(self, start: int, stop: int) -> str:
        """The characters from `start` to `stop`, marks kept."""
        cut: list[Piece] = []
        at = 0
        for chars, outside, origin in self.pieces:
            if at >= stop:
                break
            cut.append((chars[max(start - at, 0) : stop - at], outside, origin))
            at += len(chars)
        return self._marks.build(cut or [("", *self.pieces[0][1:])])

    def whole(self, text: str, *others: object) -> str:
        """A text made of this one, and others, in a way that can't be followed: all of it is from outside,
        if anything was."""
        return self._marks.build([(text, is_outside(self) or is_outside(others), self.pieces[0][2])])

    def each(self, change: Callable[[str], str]) -> str:
        """This string with every piece changed."""
        return self._marks.build([(change(chars), outside, origin) for chars, outside, origin in self.pieces])

    def cuts(self, parts: Iterable[str], gap: int | None) -> list[str]:
        """Those parts of this string that Python cut out of `real`, with `gap` characters in between."""
        found = []
        at = 0
        for part in parts:
            start = at if gap is not None else self.real.find(part, at)
            found.append(self.cut(start, start + len(part)))
            at = start + len(part) + (gap or 0)
        return found

    # Logic: as the string that is meant.

    def __eq__(self, other: object) -> bool:
        return bool(self.real == real(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.real != real(other))

    def __lt__(self, other: str) -> bool:
        return bool(self.real < real(other))

    def __le__(self, other: str) -> bool:
        return bool(self.real <= real(other))

    def __gt__(self, other: str) -> bool:
        return bool(self.real > real(other))

    def __ge__(self, other: str) -> bool:
        return bool(self.real >= real(other))

    def __hash__(self) -> int:
        return hash(self.real)

    def __len__(self) -> int:
        return len(self.real)

    def __contains__(self, other: object) -> bool:
        return real(other) in self.real

    def __repr__(self) -> str:
        quoted = self._marks.build([(_escaped(c, outside), outside, o) for c, outside, o in self.pieces])
        return f"'{quoted}'"

    # Changes: the marks go where the characters go.

    def __add__(self, other: str) -> str:
        return self._marks.build([*self.pieces, *_pieces(other)])

    def __radd__(self, other: str) -> str:
        return self._marks.build([*_pieces(other), *self.pieces])

    def __mul__(self, times: SupportsIndex) -> str:
        return self._marks.build(self.pieces * times)

    __rmul__ = __mul__

    def __mod__(self, arguments: object) -> str:
        return self.whole(self.real % unmarked(arguments), arguments)

    def __format__(self, spec: str) -> str:
        return str(self.whole(format(self.real, real(spec)), spec)) if spec else str(self)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self.real))
            return self.cut(start, stop) if step == 1 else self.whole(self.real[key])
        start = range(len(self.real))[key]
        return self.cut(start, start + 1)

    def __iter__(self) -> Iterator[str]:
        return (self.cut(at, at + 1) for at in range(len(self.real)))

    def join(self, parts: Iterable[str]) -> str:
        pieces: list[Piece] = []
        for number, part in enumerate(parts):
            pieces += (*self.pieces, *_pieces(part)) if number else _pieces(part)
        return self._marks.build(pieces)

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        old = real(old)
        if not old:
            return self.whole(self.real.replace(old, real(new), count), new)
        pieces: list[Piece] = []
        for number, part in enumerate(self.cuts(self.real.split(old, count), len(old))):
            pieces += (*_pieces(new), *_pieces(part)) if number else _pieces(part)
        return self._marks.build(pieces)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = real(sep)
        return self.cuts(self.real.split(sep, maxsplit), len(sep) if sep else None)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = real(sep)
        return self.cuts(self.real.rsplit(sep, maxsplit), len(sep) if sep else None)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self.cuts(self.real.splitlines(True), 0)
        return lines if keepends else [line.rstrip("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") for line in lines]

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self.real.partition(real(sep))
        middle = len(before) + len(found)
        return self.cut(0, len(before)), self.cut(len(before), middle), self.cut(middle, len(self))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self.real.rpartition(real(sep))
        middle = len(before) + len(found)
        return self.cut(0, len(before)), self.cut(len(before), middle), self.cut(middle, len(self))

    def strip(self, chars: str | None = None) -> str:
        start = len(self) - len(self.real.lstrip(real(chars)))
        return self.cut(start, max(start, len(self.real.rstrip(real(chars)))))

    def lstrip(self, chars: str | None = None) -> str:
        return self.cut(len(self) - len(self.real.lstrip(real(chars))), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return self.cut(0, len(self.real.rstrip(real(chars))))

    def removeprefix(self, prefix: str) -> str:
        return self.cut(len(self) - len(self.real.removeprefix(real(prefix))), len(self))

    def removesuffix(self, suffix: str) -> str:
        return self.cut(0, len(self.real.removesuffix(real(suffix))))

    def upper(self) -> str:
        return self.each(str.upper)

    def lower(self) -> str:
        return self.each(str.lower)

    def casefold(self) -> str:
        return self.each(str.casefold)

    def swapcase(self) -> str:
        return self.each(str.swapcase)

    capitalize = _changed("capitalize")
    title = _changed("title")
    center = _changed("center")
    ljust = _changed("ljust")
    rjust = _changed("rjust")
    zfill = _changed("zfill")
    expandtabs = _changed("expandtabs")

    startswith = _asked("startswith")
    endswith = _asked("endswith")
    find = _asked("find")
    rfind = _asked("rfind")
    index = _asked("index")
    rindex = _asked("rindex")
    count = _asked("count")
    isalnum = _asked("isalnum")
    isalpha = _asked("isalpha")
    isascii = _asked("isascii")
    isdecimal = _asked("isdecimal")
    isdigit = _asked("isdigit")
    isidentifier = _asked("isidentifier")
    islower = _asked("islower")
    isnumeric = _asked("isnumeric")
    isprintable = _asked("isprintable")
    isspace = _asked("isspace")
    istitle = _asked("istitle")
    isupper = _asked("isupper")


def real(value: Any) -> Any:
    """The string that is meant, for a marked string; anything else as it is."""
    return value.real if isinstance(value, Marked) else value


def unmarked(value: Any) -> Any:
    """The value with all marked strings in it, also those in lists and dicts, as what they mean."""
    if isinstance(value, Marked):
        return value.real
    if isinstance(value, list | tuple):
        return type(value)(map(unmarked, value)) if type(value) in (list, tuple) else [*map(unmarked, value)]
    if isinstance(value, dict):
        return {unmarked(key): unmarked(item) for key, item in value.items()}
    return value


def is_outside(value: Any) -> bool:
    """Whether a value has characters from outside in it, also deep in lists and dicts."""
    if isinstance(value, Marked):
        return any(piece[1] for piece in value.pieces)
    if isinstance(value, list | tuple):
        return any(map(is_outside, value))
    if isinstance(value, dict):
        return any(map(is_outside, value)) or any(map(is_outside, value.values()))
    return False


def _pieces(text: str) -> list[Piece]:
    return text.pieces if isinstance(text, Marked) else [(str(text), False, "")]


def _escaped(text: str, outside: bool) -> str:
    return text if outside else "".join("\\'" if c == "'" else repr(c)[1:-1] for c in text)
