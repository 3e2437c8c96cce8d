"""Parses rendered text into a graph.

libyaml turns the text into events; `compose` turns these into nodes with an explicit stack and counts them, so that
neither deep nesting nor aliases of aliases do harm (libyaml's own loader crashes on 50 000 brackets).
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import yaml

from forgather_mem.config.graph.composer import Composer, mark_of
from forgather_mem.config.graph.nodes import Graph, Node, line_and_column, mark_at, walk_nodes
from forgather_mem.config.graph.syntax_error import syntax_error_of
from forgather_mem.config.graph.tags import TemplateNodeError
from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.units import MIB

_Loader: Callable[[str], yaml.SafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # without libyaml: 15 times slower
_LOOK_EVERY = 500  # events
_PER_MIB = 3.0  # a template of 10 000 callbacks has 1.1 MiB and takes 0.5 s; its limit is six times that
_DIRECTIVE = re.compile("(?:^|[\n\r\x85\u2028\u2029])\ufeff?(%[^\n\r\x85\u2028\u2029]*)")


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
    try:
        _check_directives(rendered.text)
        _compose(rendered, composer, budgets.render_cpu_s * (1 + rendered.num_chars * _PER_MIB / MIB))
        graph = Graph(
            root=composer.root,
            definitions=tuple(composer.definitions),
            redeclared=tuple(composer.redeclared),
            vain=tuple(composer.vain),
            locate=rendered.place,
        )
        if composer.repeated_names:
            _refuse_repeated_names(graph, composer.repeated_names)
        return graph
    except TemplateNodeError as wrong:
        place = rendered.place(*line_and_column(wrong.mark))
        raise place.error(wrong.message, path=composer.path, hint=wrong.hint) from wrong.__cause__
    except (yaml.YAMLError, UnicodeError) as error:
        raise syntax_error_of(rendered, composer.path, error) from error
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
