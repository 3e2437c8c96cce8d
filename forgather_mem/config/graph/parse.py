"""Parses rendered text into a graph.

libyaml turns the text into events; `compose` turns these into nodes with an explicit stack and counts them, so that
neither deep nesting nor aliases of aliases do harm (libyaml's own loader crashes on 50 000 brackets).

libyaml notices a mistake late, and says which token it would have liked. What a person did is mostly seen from the
lines around: a ':' that is missing, a tab, an indentation that no other line has, an item among keys.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import yaml

from forgather_mem.config.graph.composer import Composer, mark_of
from forgather_mem.config.graph.nodes import Graph, Node, line_and_column, mark_at, walk_nodes
from forgather_mem.config.graph.scalars import PLAIN_SPACE, odd_blank
from forgather_mem.config.graph.tags import CALLS, TemplateNodeError, missing_colon_hint
from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.config.source.syntax import FORMS, indent_of
from forgather_mem.errors import TemplateError

# Without libyaml it is 15 times slower
_Loader: Callable[[str], yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LOOK_EVERY = 500  # events
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])\ufeff?%")


def parse(rendered: Rendered, budgets: Limits = DEFAULT_LIMITS) -> Graph:
    """Parse a rendered template. Nothing is imported or built.

    Raises:
        TemplateError: for invalid YAML, meaningless tags and arguments, and anything beyond a limit.
    """
    composer = Composer(rendered, budgets)
    try:
        # For each node libyaml goes through all directives, and a prefix that one gives is copied into each tag
        if "%" in rendered.text and (found := _DIRECTIVE.search(rendered.text)):
            mark = mark_at(rendered.text.count("\n", 0, found.end()) + 1, 1)
            raise TemplateNodeError(mark, "no line of a template begins with %: directives of YAML are not part of it")
        _compose(rendered, composer, budgets.cpu_s(rendered.num_chars))
        root = composer.documents[0] if composer.documents else None
        graph = Graph(root, composer.definitions, composer.redeclared, composer.vain, rendered.place)
        if composer.repeated_names:
            _refuse_repeated_names(graph, composer.repeated_names)
        return graph
    except TemplateNodeError as wrong:
        place = rendered.place(*line_and_column(wrong.mark))
        raise place.error(wrong.message, path=composer.path, hint=wrong.hint) from wrong.__cause__
    except (yaml.YAMLError, UnicodeError) as error:
        raise _syntax_error(rendered, composer.path, error) from error
    except (RecursionError, MemoryError) as error:
        raise rendered.place(1).error(f"the template is too large to parse: {error!r}") from error


def _compose(rendered: Rendered, composer: Composer, limit_s: float) -> None:
    """Give the composer all events; the clock stops what no count foresaw, as what takes libyaml long."""
    ends_s = time.thread_time() + limit_s
    loader = _Loader(rendered.text)
    event: yaml.Event | None = None
    try:
        handlers = composer.handlers
        next_event: Callable[[], yaml.Event] = loader.get_event
        while True:
            if time.thread_time() > ends_s:
                message = f"this template takes more than {limit_s:.2g} s of CPU time"
                raise TemplateNodeError(mark_of(event) if event else mark_at(1, 1), message)
            for _ in itertools.repeat(None, _LOOK_EVERY):
                event = next_event()
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
                elif type(event) is yaml.StreamEndEvent:
                    return
    finally:
        loader.dispose()
        composer.handlers = {}  # bound to the composer: all it holds would wait for the garbage collector


def _refuse_repeated_names(graph: Graph, names: set[str]) -> None:
    """Two nodes with the same `@name` are an error, unless one of them was overridden and is not in the graph."""
    holders: dict[str, Node] = {}
    for node in walk_nodes([graph.root]):
        if node.name in names and holders.setdefault(node.name, node) is not node:
            first, last = sorted((holders[node.name], node), key=lambda node: node.mark)
            there = graph.place(first.mark)
            raise TemplateNodeError(
                last.mark, f"the name @{node.name} is given twice, first at {there}", "give it another name"
            )


_HAS_KEY = re.compile(r":(?:\s|$)")
_BLANK = re.compile(r"\s*(?:#|$)")
_WORD = re.compile(r"\s*([^\W\d][\w.-]{0,99})(?=\s|$)")
_OPENS = re.compile(r"(?::|^\s*-)(?:\s+[!&]\S+)*\s*(?:#.*)?$")  # what follows in the next line is its value
_NEARLY = re.compile(r"\s*(?:=+>?|-+|<+|>+|(?=super))\s*((super\(\)|(?:extends|include|if|for|set|block|end\w+)\b).*)")
_NO_TAG = re.compile(rf".{{0,200}}:\s+((?:{'|'.join((*CALLS, *FORMS))}):)?((?(1)|[\w.]+:[^\W\d])\S.{{0,200}})")
_NO_SPACE = re.compile(r"\s*([\w.-]{1,100}:)(?!//)[^\s:]\S{0,200}\s*$")
_ARGUMENTS = re.compile(r".{0,200}:\s+!\S{1,200}\s+(\w+:\s.*)")
_UNCLOSED = re.compile(r"(?:.*[:,\[{-])?\s*([\"'])(?:(?!\1).)*$")  # a value whose quote is not closed in its line
_BARE = r"\s*([!&*].{0,100})"
_OF_LINES = {  # what the parser says of a line as a whole, and what then may be meant
    "did not find expected key": r"\s*-\s+(\S.{0,100})",
    "did not find expected '-' indicator": r"\s*[\w.-]+:\s+(\S.{0,100})",
    "mapping values are not allowed in this context": "(?!)",
    "could not find expected ':'": _BARE,
}
_OPEN = "what begins here is not closed"
_SAID = {
    "end of stream|expected ',' or": _OPEN,
    "scanning a tag": "a space ends a tag, and no quote stands in it",
    "cannot start any token": "put the value in quotes",
    "scanning an (anchor|alias)": "its name follows without a space",
}
_UNPRINTABLE = "[^\\t\\n\\r -~\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|(?<!^)\\ufeff"


class _Mistake(NamedTuple):
    """What is wrong in which line, from 0, and what to do."""

    number: int
    message: str
    hint: str | None = None
    column: int | None = None  # from 0; None: where its text begins


def _syntax_error(rendered: Rendered, path: str, error: Exception) -> TemplateError:
    """The error about a text that the parser has refused with another; the caller raises it."""
    lines = rendered.text.split("\n")
    at = (error.problem_mark or error.context_mark) if isinstance(error, yaml.MarkedYAMLError) else None
    found = None
    if isinstance(error, yaml.MarkedYAMLError) and at is not None:
        number = min(at.line, len(lines) - 1)
        found = _nearly(lines, number) or _wrong_colon(lines, number, at, str(error.problem))
        number = error.context_mark.line if error.context_mark and "expected ':'" in str(error.problem) else number
        found = found or _misplaced(lines, number, str(error.problem))
        found = found or _as_the_parser_says(lines, error, at if at.line < len(lines) else error.context_mark or at)
    found = found or _unreadable(rendered.text, error)
    line = lines[found.number] if found.number < len(lines) else ""
    message, hint = found.message, found.hint
    if rendered.has_value(line):
        message = f"a value from outside can't be used here as one string: {message}"
        hint = "a value is one whole YAML string; write {{ name | toyaml }} to have YAML read it"
    column = indent_of(line) if found.column is None else found.column
    return rendered.place(found.number + 1, column + 1).error(f"not valid YAML: {message}", path=path, hint=hint)


_NO_PAIR = "this line of a mapping is not of the form 'key: value'"


def _nearly(lines: Sequence[str], number: int) -> _Mistake | None:
    """A tab that indents the line here; a line here, or the last one above, that is nearly a statement or a tag."""
    if (tab := lines[number].find("\t", 0, indent_of(lines[number]))) >= 0:
        return _Mistake(number, "a tab indents this line", "indent with spaces; YAML allows no tab here", tab)
    for at in (number, *itertools.islice(_above(lines, number), 1)):
        if statement := _NEARLY.match(lines[at]):
            meant = ("== " if statement[2] == "super()" else "-- ") + statement[1]
            return _Mistake(at, "this line is no statement", f"did you mean {meant!r}?")
        if odd := odd_blank(lines[at].lstrip(" ")):
            return _Mistake(at, odd, PLAIN_SPACE)
        if key := _NO_SPACE.match(lines[at]):
            return _Mistake(at, _NO_PAIR, f"a space is missing after {key[1]!r}")
        if indent_of(lines[at]) < indent_of(lines[number]) and (tag := _NO_TAG.match(lines[at])):
            return _Mistake(at, "nothing can stand below a text", f"did you mean '!{tag[1] or 'singleton:'}{tag[2]}'?")
    return None


def _wrong_colon(lines: Sequence[str], number: int, at: yaml.Mark, problem: str) -> _Mistake | None:
    """A second ': ' in a line, or a line in which one seems to be missing: the parser notices only at a later ':'."""
    if problem.startswith("mapping values") and _HAS_KEY.search(lines[number][: at.column]):
        called = _ARGUMENTS.match(lines[number])
        how = f"write arguments in braces: {{ {called[1]} }}" if called else "write the value in quotes"
        return _Mistake(number, "a ': ' stands in this value", how, at.column)
    *_, begins = number, *itertools.takewhile(lambda at: not _HAS_KEY.search(lines[at]), _above(lines, number))
    word = _WORD.match(lines[begins])
    if begins == number or word is None or _continues(lines, begins):
        return None
    question = missing_colon_hint(lines[begins].partition(" #")[0].strip()) or f"is a ':' missing after {word[1]!r}?"
    return _Mistake(begins, _NO_PAIR, question)


def _continues(lines: Sequence[str], number: int) -> bool:
    """Whether a line continues a text that begins behind the key above it."""
    above = next((lines[at] for at in _above(lines, number)), "")
    return indent_of(above) < indent_of(lines[number]) and not _OPENS.search(above[-400:])


def _above(lines: Sequence[str], number: int) -> Iterator[int]:
    """The lines above one, the nearest first, without blank ones and comments."""
    return (at for at in range(number - 1, -1, -1) if not _BLANK.match(lines[at]))


def _misplaced(lines: Sequence[str], number: int, problem: str) -> _Mistake | None:
    """A line that is indented as none above it is, or an item among keys, or a key among items."""
    own, above = indent_of(lines[number]), [lines[at] for at in _above(lines, number)]
    levels = set(itertools.accumulate(map(indent_of, above), min))  # of what is open here
    bare = re.match(_BARE, lines[number])
    if bare and own not in levels and any(_OPENS.search(line[-400:]) for line in above[:1]):
        return _Mistake(number, "this line is not of the form '- item'", f"write it as an item: - {bare[1]}")
    if problem in _OF_LINES and levels and own not in levels:
        near = min(levels, key=lambda level: (abs(level - own), -level))
        return _Mistake(number, f"this line is indented by {own}, its neighbours by {near}", f"indent it by {near}")
    first = next(at for at, line in enumerate(lines) if not _BLANK.match(line))
    if "<document start>" in problem and indent_of(lines[first]) > own:
        message = f"this first line is indented by {indent_of(lines[first])}, what stands below by {own}"
        return _Mistake(first, message, "in a block, == super() comes first")
    if (meant := re.match(_OF_LINES.get(problem, "(?!)"), lines[number])) is None:
        is_text = problem.endswith("':'") and not _HAS_KEY.search(lines[number])
        return _Mistake(number, _NO_PAIR, "a comment begins with #") if is_text else None
    is_bare, beside = problem.endswith("':'"), [line for line in above if indent_of(line) == own]
    if problem.endswith("key") or (is_bare and beside and not beside[0].startswith("-", own)):
        message = _NO_PAIR if is_bare else "an item stands among keys"
        how = "write it without '- ': " if _HAS_KEY.search(meant[1]) else "give it a key of its own: my_name: "
        return _Mistake(number, message, how + meant[1])
    message = "this line is not of the form '- item'" if is_bare else "a key stands among items"
    return _Mistake(number, message, f"write it as an item: - {meant[1]}")


def _as_the_parser_says(lines: Sequence[str], error: yaml.MarkedYAMLError, at: yaml.Mark) -> _Mistake:
    """What the parser says, where it says it; of what is not closed where it begins."""
    said = ", ".join(str(part) for part in (error.context, error.problem) if part)
    hint = next((hint for words, hint in _SAID.items() if re.search(words, said)), None)
    if hint == _OPEN:
        at = error.context_mark or at
    quotes = ((line, found[1]) for line in range(at.line) if (found := _UNCLOSED.match(lines[line])))
    for number, quote in quotes:
        if hint is None and not any(quote in line for line in lines[number + 1 : at.line]):
            return _Mistake(number, said, "is the quote closed that begins in this line?")
    return _Mistake(at.line, said, hint, at.column)


def _unreadable(text: str, error: Exception) -> _Mistake:
    if found := re.search(_UNPRINTABLE, text):
        column = found.start() - text.rfind("\n", 0, found.start()) - 1
        message = f"the character U+{ord(found[0]):04X} is not allowed in a template"
        return _Mistake(text.count("\n", 0, found.start()), message, None, column)
    return _Mistake(0, str(error), None, 0)
