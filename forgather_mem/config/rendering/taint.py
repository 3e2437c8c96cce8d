"""Tainted strings: they know which of their characters came from outside.

Comparing, searching, cutting and changing one through its methods works on the real string, and the result keeps the
taint. To code unaware of taint it is the text with a token in place of each part from outside: such code may mangle a
value but can't smuggle it in. The tokens are defined in taint_tokens.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    from forgather_mem.config.rendering.taint_tokens import TaintTokens

# Characters, whether they came from outside, and the origin marker ("" if origins are not kept).
Piece: TypeAlias = tuple[str, bool, str]


def _changed(name: str) -> Callable[..., str]:
    """A method that changes a string in a way that can't be tracked: the whole result is tainted."""
    method = getattr(str, name)

    def changed(self: TaintedStr, *args: object) -> str:
        return self.whole(method(self.real, *untaint(args)), *args)

    changed.__name__ = name  # the sandbox checks it
    return changed


def _asked(name: str) -> Callable[..., Any]:
    """A method that queries a string."""
    method = getattr(str, name)

    def asked(self: TaintedStr, *args: object) -> Any:
        return method(self.real, *untaint(args))

    asked.__name__ = name
    return asked


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

    def cut(self, start: int, stop: int) -> str:
        """The characters from `start` to `stop`, taint kept."""
        cut: list[Piece] = []
        at = 0
        for chars, outside, origin in self.pieces:
            part = chars[max(start - at, 0) : max(stop - at, 0)]
            if part or (not chars and start <= at <= stop):
                cut.append((part, outside, origin))
            at += len(chars)
        return self._marks.build(cut or [("", *self.pieces[0][1:])])

    def whole(self, text: str, *others: object) -> str:
        """A text made from this one and others in a way that can't be tracked: all of it is tainted if any of them
        was."""
        return self._marks.build([(text, is_tainted(self) or is_tainted(others), self.pieces[0][2])])

    def each(self, change: Callable[[str], str]) -> str:
        """This string with every piece changed."""
        return self._marks.build([(change(chars), outside, origin) for chars, outside, origin in self.pieces])

    def cuts(self, parts: Iterable[str], gap: int | None) -> list[str]:
        """The parts that Python cut out of `text_of`, as parts of this string; `gap` characters are between them."""
        found = []
        at = 0
        for part in parts:
            start = at if gap is not None else self.real.find(part, at)
            found.append(self.cut(start, start + len(part)))
            at = start + len(part) + (gap or 0)
        return found

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

    # Queries act on the real string.

    def __eq__(self, other: object) -> bool:
        return bool(self.real == text_of(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.real != text_of(other))

    def __lt__(self, other: str) -> bool:
        return bool(self.real < text_of(other))

    def __le__(self, other: str) -> bool:
        return bool(self.real <= text_of(other))

    def __gt__(self, other: str) -> bool:
        return bool(self.real > text_of(other))

    def __ge__(self, other: str) -> bool:
        return bool(self.real >= text_of(other))

    def __hash__(self) -> int:
        return hash(self.real)

    def __len__(self) -> int:
        return len(self.real)

    def __contains__(self, other: object) -> bool:
        return text_of(other) in self.real

    def __repr__(self) -> str:
        quoted = self._marks.build([(_escaped(c, outside), outside, o) for c, outside, o in self.pieces])
        return f"'{quoted}'"

    # Changes carry the taint along with the characters.

    def __add__(self, other: str) -> str:
        return self._marks.build([*self.pieces, *_pieces(other)])

    def __radd__(self, other: str) -> str:
        return self._marks.build([*_pieces(other), *self.pieces])

    def __mul__(self, times: SupportsIndex) -> str:
        return self._marks.build(self.pieces * times)

    __rmul__ = __mul__

    def __mod__(self, arguments: object) -> str:
        return self.whole(self.real % untaint(arguments), arguments)

    def __format__(self, spec: str) -> str:
        return str(self.whole(format(self.real, text_of(spec)), spec)) if spec else str(self)

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
        old = text_of(old)
        if not old:
            return self.whole(self.real.replace(old, text_of(new), count), new)
        pieces: list[Piece] = []
        for number, part in enumerate(self.cuts(self.real.split(old, count), len(old))):
            pieces += (*_pieces(new), *_pieces(part)) if number else _pieces(part)
        return self._marks.build(pieces)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = text_of(sep)
        return self.cuts(self.real.split(sep, maxsplit), len(sep) if sep else None)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        sep = text_of(sep)
        return self.cuts(self.real.rsplit(sep, maxsplit), len(sep) if sep else None)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self.cuts(self.real.splitlines(True), 0)
        return lines if keepends else [line.rstrip("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") for line in lines]

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self.real.partition(text_of(sep))
        middle = len(before) + len(found)
        return self.cut(0, len(before)), self.cut(len(before), middle), self.cut(middle, len(self))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, _ = self.real.rpartition(text_of(sep))
        middle = len(before) + len(found)
        return self.cut(0, len(before)), self.cut(len(before), middle), self.cut(middle, len(self))

    def strip(self, chars: str | None = None) -> str:
        start = len(self) - len(self.real.lstrip(text_of(chars)))
        return self.cut(start, max(start, len(self.real.rstrip(text_of(chars)))))

    def lstrip(self, chars: str | None = None) -> str:
        return self.cut(len(self) - len(self.real.lstrip(text_of(chars))), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return self.cut(0, len(self.real.rstrip(text_of(chars))))

    def removeprefix(self, prefix: str) -> str:
        return self.cut(len(self) - len(self.real.removeprefix(text_of(prefix))), len(self))

    def removesuffix(self, suffix: str) -> str:
        return self.cut(0, len(self.real.removesuffix(text_of(suffix))))

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
