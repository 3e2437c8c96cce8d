"""Strings from outside, and what templates make of them.

A value from outside is data: neither Jinja nor YAML may read it as template text. So a rendered text never contains its
characters but a *token* that nobody can guess; the parser puts the value back after YAML has been read. To code unaware
of taint a tainted string is its text with the tokens in place: such code may mangle a value but can't smuggle it in.

The methods of a tainted string work on the string that is meant. Putting strings together, trimming and indenting them
and what changes each part by itself keep values and template text apart; of anything else the whole result is a value.
The same strings carry *origins* when a template is rendered for its source map: a marker before each piece names its
template and line.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from jinja2.exceptions import TemplateRuntimeError

from forgather_mem.config.source.rendered import MARK, ORIGIN, ORIGIN_CLOSE, RESERVED, TOKEN, TOKEN_CLOSE, TOKEN_OPEN

_TAG = re.compile(rf"(?<![^\s\[{{,{ORIGIN_CLOSE}])![A-Za-z]\S*")
_NAME_PART = re.compile(r"[A-Za-z0-9_./~+-]+")


class Mangled(TemplateRuntimeError):
    """A token was cut or changed."""


class TaintTokens:
    """The strings from outside in the current render, each with its token."""

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

    def mark(self, made: Any) -> Any:
        """A string from outside, tainted as a whole; of a list or a tuple each string in it."""
        if type(made) in (list, tuple):
            return type(made)(map(self.mark, made))
        return TaintedStr(self.token(made), made, self) if isinstance(made, str) else made

    def lifted(self, text: str) -> TaintedStr:
        """The same string, whose methods keep the taint of their arguments."""
        return text if isinstance(text, TaintedStr) else TaintedStr(text, text, self)

    def read(self, text: str) -> str:
        """The string that a text with tokens and origins stands for; the text itself if it has none."""
        if TOKEN_OPEN not in text and ORIGIN_CLOSE not in text:
            return text
        meant = TOKEN.sub(lambda match: self.by_token.get(match[0], match[0]), ORIGIN.sub("", text))
        return TaintedStr(text, meant, self)


class TaintedStr(str):
    """A string that contains strings from outside. Made by `TaintTokens`.

    Attributes:
        real: The string that is meant; the characters of this one are its text, with tokens and origins.
    """

    __slots__ = ("_marks", "real")
    real: str
    _marks: TaintTokens

    def __new__(cls, text: str, real: str, marks: TaintTokens) -> TaintedStr:
        self = super().__new__(cls, text)
        self.real = real
        self._marks = marks
        return self

    def indented(self, indent: str, first: bool, blank: bool) -> str:
        """The lines indented, empty ones only if `blank`; a value in the text stays as it is."""
        if TOKEN.fullmatch(str(self)):
            whole: str = self._marks.mark(self._marks.lifted(self.real).indented(indent, first, blank))
            return whole
        begin, *lines = str(self).split("\n")
        lines = [indent + line if blank or ORIGIN.sub("", line) else line for line in lines]
        return self._marks.read("\n".join([indent * first + begin, *lines]))

    def __repr__(self) -> str:
        return f"'{self._whole(self.real)}'" if is_tainted(self) else repr(self.real)

    def __add__(self, other: str) -> str:
        return self._marks.read(str(self) + str(other))

    def __radd__(self, other: str) -> str:
        return self._marks.read(str(other) + str(self))

    def __mul__(self, times: SupportsIndex) -> str:
        return self._marks.read(str(self) * times)

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[str]:
        return map(self._whole, self.real)

    def join(self, parts: Iterable[str]) -> str:
        return self._marks.read(str(self).join(map(str, parts)))

    def lstrip(self, chars: str | None = None) -> str:
        return self._trimmed(str.lstrip, text_of(chars), iter)

    def rstrip(self, chars: str | None = None) -> str:
        return self._trimmed(str.rstrip, text_of(chars), reversed)

    def strip(self, chars: str | None = None) -> str:
        return self._marks.lifted(self.lstrip(chars)).rstrip(chars)

    def _trimmed(self, method: Callable[..., str], chars: str | None, order: Callable[[range], Iterable[int]]) -> str:
        """The string without what `method` takes away at one end, the parts looked at in this order."""
        parts = MARK.split(str(self))
        for at in order(range(len(parts))):
            left, parts[at] = self._changed(parts[at], method, chars)
            if left:
                break
        return self._marks.read("".join(parts))

    def _changed(self, part: str, method: Callable[..., str], *args: object) -> tuple[str, str]:
        """What a method makes of one part, a value or text between values; and that as a part."""
        if ORIGIN.fullmatch(part):
            return "", part
        value = self._marks.by_token.get(part)
        made = method(part if value is None else value, *args)
        return made, made if value is None else self._marks.token(made)

    def _whole(self, made: Any, *others: object) -> Any:
        """What was made of this string and others in a way that can't be tracked: all of it is tainted if any of them
        was."""
        return self._marks.mark(made) if is_tainted(self) or is_tainted(others) else made


def _method(name: str, *, by_part: bool) -> Callable[..., Any]:
    """A method of a string on the string that is meant; the taint of what it makes is kept."""
    method = getattr(str, name)

    def run(self: TaintedStr, *args: Any, **kwargs: object) -> Any:
        made = method(self.real, *untaint(args), **untaint(kwargs))
        if by_part and not is_tainted(args):
            changed = [self._changed(part, method, *args) for part in MARK.split(str(self))]
            if "".join(left for left, _ in changed) == made:
                return self._marks.read("".join(part for _, part in changed))
        return self._whole(made, args, kwargs)

    run.__name__ = name  # the sandbox checks it
    return run


_BY_PART = "upper lower casefold swapcase replace __format__"
_AT_ONCE = (
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __contains__ __getitem__ __mod__ capitalize center "
    "count endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
    "isprintable isspace istitle isupper ljust partition removeprefix removesuffix rfind rindex rjust rpartition "
    "rsplit split splitlines startswith title zfill"
)
for _name in f"{_BY_PART} {_AT_ONCE}".split():
    setattr(TaintedStr, _name, _method(_name, by_part=_name in _BY_PART.split()))


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
        return TOKEN_OPEN in str(value)
    if isinstance(value, list | tuple):
        return any(map(is_tainted, value))
    if isinstance(value, dict):
        return any(map(is_tainted, value)) or any(map(is_tainted, value.values()))
    return False


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
    return _dumped(value)


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


def _plain(value: object) -> object:
    if isinstance(value, TaintedStr):
        return str(value)
    if isinstance(value, dict):
        with contextlib.suppress(TypeError):  # keys of several types keep their order
            value = dict(sorted(value.items(), key=lambda pair: text_of(pair[0])))
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
