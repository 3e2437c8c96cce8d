"""What is meant by a text that is not valid YAML: the line of the mistake, and what to do.

The parser notices a mistake late, and says which token it would have liked. What a person did is mostly seen from the
lines around: a ':' that is missing, a tab, an indentation that no other line has, an item among keys.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from forgather_mem.config.graph.tags import CALLS, missing_colon_hint
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.config.source.syntax import FORMS, indent_of
from forgather_mem.errors import TemplateError

_HAS_KEY = re.compile(r":(?:\s|$)")
_BLANK = re.compile(r"\s*(?:#|$)")
_WORD = re.compile(r"\s*([^\W\d][\w.-]{0,99})(?=\s|$)")
_OPENS = re.compile(r"(?::|^\s*-)(?:\s+[!&]\S+)*\s*(?:#.*)?$")  # what follows in the next line is its value
_NEARLY = re.compile(r"\s*(?:=+>?|-+|<+|>+|(?=super))\s*((super\(\)|(?:extends|include|if|for|set|block|end\w+)\b).*)")
_NO_TAG = re.compile(rf".{{0,200}}:\s+((?:{'|'.join((*CALLS, *FORMS))}):\S.{{0,200}})")
_NO_SPACE = re.compile(r"\s*([\w.-]{1,100}:)(?!//)[^\s:]\S{0,200}\s*$")
_OF_LINES = {  # what the parser says of a line as a whole, and what then may be meant
    "did not find expected key": r"\s*-\s+(\S.{0,100})",
    "did not find expected '-' indicator": r"\s*[\w.-]+:\s+(\S.{0,100})",
    "mapping values are not allowed in this context": "(?!)",
}
_UNPRINTABLE = "[^\\t\\n\\r -~\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|(?<!^)\\ufeff"


@dataclass(frozen=True, slots=True)
class _Mistake:
    """What is wrong in which line, from 0, and what to do."""

    number: int
    message: str
    hint: str | None = None
    column: int | None = None  # from 0; None: where its text begins


def syntax_error_of(rendered: Rendered, path: str, error: Exception) -> TemplateError:
    """The error about a text that the parser has refused with another; the caller raises it."""
    lines = rendered.text.split("\n")
    at = (error.problem_mark or error.context_mark) if isinstance(error, yaml.MarkedYAMLError) else None
    found = None
    if isinstance(error, yaml.MarkedYAMLError) and at is not None:
        number = min(at.line, len(lines) - 1)
        found = _tab(lines, number) or _nearly(lines, number) or _missing_colon(lines, number)
        found = found or _misplaced(lines, number, str(error.problem))
        found = found or _as_the_parser_says(error, at if at.line < len(lines) else error.context_mark or at)
    found = found or _unreadable(rendered.text, error)
    line = lines[found.number] if found.number < len(lines) else ""
    message, hint = found.message, found.hint
    if rendered.has_value(line):
        message = f"a value from outside can't be used here as one string: {message}"
        hint = "a value is one whole YAML string; write {{ name | toyaml }} to have YAML read it"
    column = indent_of(line) if found.column is None else found.column
    return rendered.place(found.number + 1, column + 1).error(f"not valid YAML: {message}", path=path, hint=hint)


def _tab(lines: Sequence[str], number: int) -> _Mistake | None:
    line = lines[number]
    if "\t" not in line[: indent_of(line)]:
        return None
    hint = "indent with spaces; YAML allows no tab here"
    return _Mistake(number, "a tab indents this line", hint, line.index("\t"))


def _nearly(lines: Sequence[str], number: int) -> _Mistake | None:
    """A line here, or the last one above, that is nearly a statement or a tag."""
    above = (at for at in range(number - 1, -1, -1) if not _BLANK.match(lines[at]))
    for at in (number, *itertools.islice(above, 1)):
        if statement := _NEARLY.match(lines[at]):
            meant = ("== " if statement[2] == "super()" else "-- ") + statement[1]
            return _Mistake(at, "this line is no statement", f"did you mean {meant!r}?")
        if key := _NO_SPACE.match(lines[at]):
            return _Mistake(
                at, "this line of a mapping is not of the form 'key: value'", f"a space is missing after {key[1]!r}"
            )
        if at < number and (tag := _NO_TAG.match(lines[at])):
            return _Mistake(at, "nothing can stand below a text", f"did you mean '!{tag[1]}'?")
    return None


def _missing_colon(lines: Sequence[str], number: int) -> _Mistake | None:
    """A line in which a ':' seems to be missing. The parser notices only at some later ':'."""
    begins = number
    for above in itertools.takewhile(lambda above: not _HAS_KEY.search(lines[above]), range(number - 1, -1, -1)):
        begins = begins if _BLANK.match(lines[above]) else above
    word = _WORD.match(lines[begins])
    if begins == number or word is None or _continues(lines, begins):
        return None
    question = missing_colon_hint(lines[begins].partition(" #")[0].strip()) or f"is a ':' missing after {word[1]!r}?"
    return _Mistake(begins, "this line of a mapping is not of the form 'key: value'", question)


def _continues(lines: Sequence[str], number: int) -> bool:
    """Whether a line continues a text that begins behind the key above it."""
    above = next((line for line in reversed(lines[:number]) if not _BLANK.match(line)), "")
    return indent_of(above) < indent_of(lines[number]) and not _OPENS.search(above[-400:])


def _misplaced(lines: Sequence[str], number: int, problem: str) -> _Mistake | None:
    """A line that is indented as none above it is, or an item among keys, or a key among items."""
    own, levels = indent_of(lines[number]), list(_levels(lines[:number]))
    if problem in _OF_LINES and levels and own not in levels:
        near = min(levels, key=lambda level: abs(level - own))
        return _Mistake(number, f"this line is indented by {own}, its neighbours by {near}", f"indent it by {near}")
    first = next(at for at, line in enumerate(lines) if not _BLANK.match(line))
    if "<document start>" in problem and indent_of(lines[first]) > own:
        message = f"this first line is indented by {indent_of(lines[first])}, what stands below by {own}"
        return _Mistake(first, message, "in a block, == super() comes first")
    meant = re.match(_OF_LINES.get(problem, "(?!)"), lines[number])
    if meant and problem.endswith("key"):
        return _Mistake(number, "an item stands among keys", f"give it a key of its own: my_name: {meant[1]}")
    return _Mistake(number, "a key stands among items", f"write it as an item: - {meant[1]}") if meant else None


def _levels(above: Sequence[str]) -> Iterator[int]:
    """The indentations of what is open below these lines, the innermost first."""
    lowest = None
    for line in reversed(above):
        if not _BLANK.match(line) and (lowest is None or indent_of(line) < lowest):
            lowest = indent_of(line)
            yield lowest
        if lowest == 0:
            return


def _as_the_parser_says(error: yaml.MarkedYAMLError, at: yaml.Mark) -> _Mistake:
    """What the parser says, where it says it; of what is not closed where it begins."""
    said = ", ".join(str(part) for part in (error.context, error.problem) if part)
    if "scanning a tag" in said:
        return _Mistake(at.line, said, "a tag is letters, digits and -_.:/@ and ends at a space", at.column)
    if re.search("end of stream|expected ',' or", said):
        at = error.context_mark or at
    return _Mistake(at.line, said, "what begins here is not closed" if at is error.context_mark else None, at.column)


def _unreadable(text: str, error: Exception) -> _Mistake:
    if found := re.search(_UNPRINTABLE, text):
        column = found.start() - text.rfind("\n", 0, found.start()) - 1
        message = f"the character U+{ord(found[0]):04X} is not allowed in a template"
        return _Mistake(text.count("\n", 0, found.start()), message, None, column)
    return _Mistake(0, str(error), None, 0)
