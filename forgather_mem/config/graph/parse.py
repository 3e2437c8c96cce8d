"""Parses rendered text into a graph.

libyaml turns the text into events; `compose` turns these into nodes with an explicit stack and counts them, so that
neither deep nesting nor aliases of aliases do harm (libyaml's own loader crashes on 50 000 brackets).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from forgather_mem.config.clock import CpuClock, OutOfTime
from forgather_mem.config.graph.composer import Composer, mark_of
from forgather_mem.config.graph.nodes import Graph, Node, line_and_column, mark_at, walk_nodes
from forgather_mem.config.graph.tags import TemplateNodeError, missing_colon_hint
from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import TemplateError

_Loader: Callable[[str], yaml.SafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # without libyaml: 15 times slower
_LOOK_EVERY = 500  # events
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])\ufeff?(%[^\n\r\x85\u2028\u2029]*)")
_KEY = re.compile(r"\s*(?:- +)?[\w.-]+")
_HAS_KEY = re.compile(r":(?:\s|$)")
_BLANK = re.compile(r"\s*(?:#|$)")
_WORD = re.compile(r"\s*([^\W\d][\w.-]{0,99})(?=\s|$)")
_OPENS = re.compile(r"(?::|^\s*-)(?:\s+[!&]\S+)*\s*(?:#.*)?$")  # what follows in the next line is its value
_UNPRINTABLE = "[^\\t\\n\\r -~\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|(?<!^)\\ufeff"


@dataclass(frozen=True, slots=True)
class _Directives:
    """Lines that begin with "%", as `%TAG` does: for each node libyaml goes through all of them, and a prefix that one
    gives is copied into each tag."""

    lines: int = 10
    chars: int = 200


_MOST = _Directives()


def parse(rendered: Rendered, budgets: Limits | None = None) -> Graph:
    """Parse a rendered template. Nothing is imported or built.

    Raises:
        TemplateError: for invalid YAML, meaningless tags and arguments, and anything beyond a limit.
    """
    budgets = budgets or DEFAULT_LIMITS
    composer = Composer(rendered, budgets)
    clock = CpuClock(budgets.render_cpu_s, spent_s=rendered.spent_s)
    clock.read(rendered.num_chars)
    try:
        with clock:
            _check_directives(rendered.text)
            _compose(rendered, composer, clock)
        graph = Graph(
            root=composer.root,
            definitions=tuple(composer.definitions),
            redeclared=tuple(composer.redeclared),
            locate=rendered.place,
        )
        if composer.repeated_names:
            _refuse_repeated_names(graph, composer.repeated_names)
        return graph
    except TemplateNodeError as wrong:
        place = rendered.place(*line_and_column(wrong.mark))
        raise place.error(wrong.message, path=composer.path, hint=wrong.hint) from wrong.__cause__
    except (yaml.YAMLError, UnicodeError) as error:
        raise _syntax_error(rendered, composer, error) from error
    except (RecursionError, MemoryError) as error:
        raise rendered.place(1).error(f"the template is too large to parse: {error!r}") from error


def _compose(rendered: Rendered, composer: Composer, clock: CpuClock) -> None:
    loader = _Loader(rendered.text)
    event: yaml.Event | None = None
    try:
        handlers = composer.handlers
        next_event: Callable[[], yaml.Event] = loader.get_event
        while True:
            clock.look()
            for _ in itertools.repeat(None, _LOOK_EVERY):
                event = next_event()
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
                elif type(event) is yaml.StreamEndEvent:
                    return
    except OutOfTime as error:
        raise TemplateNodeError(mark_of(event) if event else mark_at(1, 1), str(error)) from error
    finally:
        loader.dispose()
        composer.handlers = {}  # bound to the composer: all it holds would wait for the garbage collector


def _check_directives(text: str) -> None:
    """Refuse what libyaml would take long for before its first event."""
    if "%" in text:
        lines = list(itertools.islice(_DIRECTIVE.finditer(text), _MOST.lines + 1))
        long = [line for line in lines if len(line[1]) > _MOST.chars]
        if long or len(lines) > _MOST.lines:
            line = text.count("\n", 0, (long or lines)[-1].start(1)) + 1
            limit = f"{_MOST.lines} lines that begin with %, of {_MOST.chars} characters each"
            raise TemplateNodeError(mark_at(line, 1), f"a template has at most {limit}")


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


def _syntax_error(rendered: Rendered, composer: Composer, error: Exception) -> TemplateError:
    lines = rendered.text.split("\n")
    if isinstance(error, yaml.MarkedYAMLError) and (found := _line_without_colon(lines, error)):
        number, question = found
        column = len(lines[number]) - len(lines[number].lstrip()) + 1
        message = "not valid YAML: this line of a mapping is not of the form 'key: value'"
        return rendered.place(number + 1, column).error(message, path=composer.path, hint=question)
    number, column, message = _problem(rendered.text, error)
    line = lines[number - 1] if number <= len(lines) else ""
    hint = None
    if rendered.has_value(line):
        message = f"a value from outside can't be used here as one string: {message}"
        hint = "a value is one whole YAML string; write {{ name | toyaml }} to have YAML read it"
    elif "\t" in line[:column] and "token" in message:
        hint = "indent with spaces; YAML allows no tab here"
    elif "scanning a tag" in message:
        hint = "a tag is letters, digits and -_.:/@ and ends at a space, also before a bracket"
    return rendered.place(number, column).error(message, path=composer.path, hint=hint)


def _line_without_colon(lines: Sequence[str], error: yaml.MarkedYAMLError) -> tuple[int, str] | None:
    """The line in which a ':' seems to be missing, from 0, and a hint. The parser notices only at some later ':'."""
    number = _begin_of_text(lines, error)
    if number is None or not 0 <= number < len(lines):
        return None
    line = lines[number]
    word = _WORD.match(line)
    if word is None or _HAS_KEY.search(line) or _continues(lines, number):
        return None
    return number, missing_colon_hint(line.partition(" #")[0].strip()) or f"is a ':' missing after {word[1]!r}?"


def _begin_of_text(lines: Sequence[str], error: yaml.MarkedYAMLError) -> int | None:
    """The first line, from 0, of what the parser took for one text, until it found a ':' behind it."""
    at = error.problem_mark
    if error.problem == "could not find expected ':'" and error.context_mark is not None:
        return error.context_mark.line
    if at is None or at.line >= len(lines):
        return None
    if error.problem == "did not find expected <document start>":
        return next((i for i, line in enumerate(lines) if not _BLANK.match(line)), None)
    if error.problem != "mapping values are not allowed in this context":
        return None
    if not _KEY.fullmatch(lines[at.line][: at.column]):
        return None  # `a: b: c` has one ':' too many
    number = at.line
    while number > 0 and not _BLANK.match(lines[number - 1]) and not _HAS_KEY.search(lines[number - 1]):
        number -= 1
    return number if number < at.line else None


def _continues(lines: Sequence[str], number: int) -> bool:
    """Whether a line continues a text that begins behind the key above it."""
    above = next((line for line in reversed(lines[:number]) if not _BLANK.match(line)), "")
    is_deeper = len(above) - len(above.lstrip()) < len(lines[number]) - len(lines[number].lstrip())
    return is_deeper and not _OPENS.search(above[-400:])


def _problem(text: str, error: Exception) -> tuple[int, int, str]:
    """Line, column and message."""
    if isinstance(error, yaml.MarkedYAMLError) and (at := error.problem_mark or error.context_mark):
        said = ", ".join(str(part) for part in (error.context, error.problem) if part)
        written = text.rstrip()
        last = written.count("\n") + 1
        if at.line + 1 > last:  # it ends too early: point after its last character, not to an empty line
            return last, len(written) - written.rfind("\n"), f"not valid YAML: {said}"
        return at.line + 1, at.column + 1, f"not valid YAML: {said}"
    if found := re.search(_UNPRINTABLE, text):
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        return line, column, f"the character U+{ord(found[0]):04X} is not allowed in a template"
    return 1, 1, f"not valid YAML: {error}"
