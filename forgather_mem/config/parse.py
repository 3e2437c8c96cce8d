"""How does rendered text become a graph?

libyaml reads the text into events; `compose` makes nodes of them with a stack of its own, and counts them, so that
neither deep nesting nor aliases of aliases can hurt (libyaml's own loader crashes on 50 000 brackets).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import yaml

from forgather_mem.config.budgets import Budgets
from forgather_mem.config.compose import Composer
from forgather_mem.config.nodes import Graph, Node, edges, line_and_column
from forgather_mem.config.rendered import Rendered
from forgather_mem.config.tags import Wrong
from forgather_mem.errors import TemplateError

_Loader: Callable[[str], yaml.SafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # without libyaml: 15 times slower
_UNPRINTABLE = "[^\\t\\n\\r -~\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]|(?<!^)\\ufeff"


def parse(rendered: Rendered, budgets: Budgets | None = None) -> Graph:
    """Parse a rendered template. Nothing is imported or built.

    Raises:
        TemplateError: for text that is no YAML, tags and arguments that mean nothing, and too much of anything.
    """
    composer = Composer(rendered, budgets or Budgets())
    try:
        _compose(rendered.text, composer)
        graph = Graph(
            root=composer.root,
            definitions=tuple(composer.definitions),
            redeclared=tuple(composer.redeclared),
            locate=rendered.place,
        )
        if composer.repeated_names:
            _refuse_repeated_names(graph, composer.repeated_names)
        return graph
    except Wrong as wrong:
        place = rendered.place(*line_and_column(wrong.mark))
        raise place.error(wrong.message, path=composer.path, hint=wrong.hint) from wrong.__cause__
    except (yaml.YAMLError, UnicodeError) as error:
        raise _syntax_error(rendered, composer, error) from error
    except (RecursionError, MemoryError) as error:
        raise rendered.place(1).error(f"the template is too large to parse: {error!r}") from error


def _compose(text: str, composer: Composer) -> None:
    loader = _Loader(text)
    try:
        handlers = composer.handlers
        next_event: Callable[[], yaml.Event] = loader.get_event
        while True:
            event = next_event()
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
            elif type(event) is yaml.StreamEndEvent:
                return
    finally:
        loader.dispose()


def _refuse_repeated_names(graph: Graph, names: set[str]) -> None:
    """Two nodes with one `@name` are an error, unless one of them was overridden and is not in the graph."""
    holders: dict[str, Node] = {}
    seen: set[int] = set()
    stack = [graph.root]
    while stack:
        node = stack.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.name in names:
            first = holders.setdefault(node.name, node)
            if first is not node:
                first, last = sorted((first, node), key=lambda node: node.mark)
                there = graph.place(first.mark)
                raise Wrong(
                    last.mark, f"the name @{node.name} is given twice, first at {there}", "give it another name"
                )
        stack.extend(value for _, value in edges(node))


def _syntax_error(rendered: Rendered, composer: Composer, error: Exception) -> TemplateError:
    number, column, message = _problem(rendered.text, error)
    lines = rendered.text.split("\n")
    line = lines[number - 1] if number <= len(lines) else ""
    hint = None
    if rendered.has_value(line):
        message = f"a value from outside stands here where it can't be one text: {message}"
        hint = "a value is one whole YAML text; write {{ name | toyaml }} where YAML shall read it"
    elif "\t" in line[:column] and "token" in message:
        hint = "indent with spaces; YAML takes no tab here"
    elif "scanning a tag" in message:
        hint = "a tag is letters, digits and -_.:/@ and ends at a space, also before a bracket"
    return rendered.place(number, column).error(message, path=composer.path, hint=hint)


def _problem(text: str, error: Exception) -> tuple[int, int, str]:
    """Line, column and what is wrong."""
    if isinstance(error, yaml.MarkedYAMLError) and (at := error.problem_mark or error.context_mark):
        said = ", ".join(str(part) for part in (error.context, error.problem) if part)
        written = text.rstrip()
        last = written.count("\n") + 1
        if at.line + 1 > last:  # it ends too early: behind its last character, not on an empty line
            return last, len(written) - written.rfind("\n"), f"this is no YAML: {said}"
        return at.line + 1, at.column + 1, f"this is no YAML: {said}"
    if found := re.search(_UNPRINTABLE, text):
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        return line, column, f"the character U+{ord(found[0]):04X} may not stand in a template"
    return 1, 1, f"this is no YAML: {error}"
