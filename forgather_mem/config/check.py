"""Checks a template without building the user's objects: syntax, names, arguments, variables.

It finds syntax errors, names that the policy refuses or that can't be imported, arguments and values that don't fit,
and variables that are missing or unused. Only what the policy allows is imported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from forgather_mem.config.construction.resolve import MAX_NAMES, OWN_VARIABLE
from forgather_mem.config.environment import Config, ConfigEnvironment
from forgather_mem.config.graph.nodes import Paths
from forgather_mem.config.graph.tags import missing_colon_hint
from forgather_mem.config.policy.denied import Refused
from forgather_mem.config.source.location import SourceLocation
from forgather_mem.config.source.syntax import split, to_jinja
from forgather_mem.errors import TemplateError, did_you_mean
from forgather_mem.files import read_file

Kind = Literal["template", "block", "refused", "misfit", "unbound", "unused", "redeclared"]

_MAX_BYTES = 1 << 30  # it was loaded, so that it is not larger than the limit of a load
_BRACES = re.compile(r"\{[{%]|[}%]\}")
_BLANK = re.compile(r"\s*(#|---|$)")
_QUOTES = ("'", '"', "|", ">")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[.\[][\s'\"]*([A-Za-z_]\w*)")  # part of a variable: a.part, a["part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a template, or worth knowing about it.

    Attributes:
        kind: "template": it can't be read, or has no targets since a ':' is missing; "block": a block that is never
            printed; "refused": a name that the policy refuses; "misfit": a name that doesn't exist, or arguments that
            don't fit it; "unbound": a variable without a value; "unused": a value without a variable; "redeclared": a
            key given twice in one template, which is not a mistake.
        error: The message for people, with its location.
    """

    kind: Kind
    error: TemplateError

    @property
    def names(self) -> tuple[str, ...]:
        """The refused names concerned."""
        return self.error.names if isinstance(self.error, Refused) else ()

    @property
    def entries(self) -> tuple[str, ...]:
        """The allow entries that open them."""
        return self.error.entries if isinstance(self.error, Refused) else ()

    @property
    def is_mistake(self) -> bool:
        """Whether it has to be fixed: of what is found, all but a key given twice."""
        return self.kind != "redeclared"


def problems_of(
    config: Config, environment: ConfigEnvironment, name: str, variables: Mapping[str, object]
) -> list[Problem]:
    """All problems found, in the order of the stages.

    Args:
        config: The loaded template.
        environment: Where templates are looked for, with the policy.
        name: Name of the template.
        variables: Its variables, for Jinja and for `!var`.
    """
    misfits = list(_misfits(config, variables))
    found = (
        (Problem(kind="block", error=error) for error in config.rendered.unknown_blocks),
        refused(environment, config, misfits),
        (problem for problem in misfits if problem.kind == "misfit"),
        _unbound(config, variables),
        unused(environment, config, name, variables),
        _without_targets(config),
        _redeclared(environment, config, name, variables),
    )
    return [problem for stage in found for problem in itertools.islice(stage, MAX_NAMES)]


def refused(environment: ConfigEnvironment, config: Config, misfits: Iterable[Problem] | None = None) -> list[Problem]:
    """What the policy refuses: names by their text, and by where the object is defined; addresses, also computed ones.

    Args:
        environment: Where templates are looked for, with the policy.
        config: The loaded template.
        misfits: What `Config.misfits` found, where that is known already.
    """
    found = []
    for use in config.names():
        try:
            environment.policy.check([use])
        except Refused as error:
            found.append(Problem(kind="refused", error=error))
    return found + [
        problem for problem in (_misfits(config, {}) if misfits is None else misfits) if problem.kind == "refused"
    ]


def unused(
    environment: ConfigEnvironment, config: Config, name: str, variables: Mapping[str, object]
) -> Iterator[Problem]:
    """Variables given but mentioned neither in the template nor in any that it uses: probably misspelt.

    Of a variable's parts (`a.b`), only those close to the name of a part that some template uses: a template may also
    pass on a mapping as a whole.
    """
    if not variables:
        return
    known = {use.name for use in config.variables()}
    parts: set[str] = set()
    for _, _, file in environment.find_referenced_templates(name, **variables):
        for tag in _jinja_in(read_file(file, _MAX_BYTES).decode("utf-8-sig")) if file else ():
            known.update(_WORD.findall(tag))
            parts.update(_PART.findall(tag))
    for key in variables:
        if key not in known:
            error = TemplateError(
                f"no template uses the variable {key!r}", template=name, hint=did_you_mean(key, known)
            )
            yield Problem(kind="unused", error=error)
    for path, part in _parts_of(variables):
        hint = did_you_mean(part, parts) if part not in known else None
        if hint:
            error = TemplateError(f"no template uses the variable {path!r}", template=name, hint=hint)
            yield Problem(kind="unused", error=error)


def _parts_of(value: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Path and name of everything inside the mappings among these values."""
    for key, part in value.items():
        if path:
            yield f"{path}{key}", str(key)
        if isinstance(part, Mapping):
            yield from _parts_of(part, f"{path}{key}.")


def _misfits(config: Config, variables: Mapping[str, object]) -> Iterator[Problem]:
    for error in config.misfits(context_vars=variables):
        yield Problem(kind="refused" if isinstance(error, Refused) else "misfit", error=error)


def _unbound(config: Config, variables: Mapping[str, object]) -> Iterator[Problem]:
    seen = set()
    for use in config.variables():
        if use.has_default or use.name in variables or use.name == OWN_VARIABLE or use.name in seen:
            continue
        seen.add(use.name)
        message = f"the variable {use.name!r} has no default, so a value must be given"
        hint = did_you_mean(use.name, variables)
        given = f"context_vars={{{use.name!r}: ...}} in Python, --set {use.name}=... here"
        error = use.place.error(message, path=use.path, hint=f"{hint} Else: {given}" if hint else given)
        yield Problem(kind="unbound", error=error)


def _jinja_in(text: str) -> Iterator[str]:
    """The contents of a template file's Jinja tags."""
    for part in split(text):
        source, start = to_jinja(part.text), None
        for brace in _BRACES.finditer(source):
            if brace[0][0] == "{":
                start = brace.end() if start is None else start
            elif start is not None:
                yield source[start : brace.start()]
                start = None


def _without_targets(config: Config) -> Iterator[Problem]:
    """A document that is one text, because the ':' behind its only key is missing."""
    root, text = config.graph.root, config.rendered.text
    hint = missing_colon_hint(root)
    if hint is not None and not text.lstrip().startswith(_QUOTES):
        line = next(number for number, line in enumerate(text.split("\n"), 1) if not _BLANK.match(line))
        message = "the document is one text, so it has no targets"
        yield Problem(kind="template", error=config.rendered.place(line).error(message, path="$", hint=hint))


def _levels(references: Iterable[tuple[int, str, str]]) -> Callable[[SourceLocation], int]:
    """How far a location is from the template that was asked for: 0 is that template itself, 1 what it uses.

    Args:
        references: Level, name and file of each template; sub-templates are templates of the same file.
    """
    levels: dict[str, int] = {}
    first_lines: dict[str, list[tuple[int, str]]] = {}
    for level, template, file in references:
        levels.setdefault(template, level)
        if file and template not in first_lines:
            parts = split(read_file(file, _MAX_BYTES).decode("utf-8-sig"))
            first_lines[template] = [(part.first_line, part.name or template) for part in parts]

    def level_of(place: SourceLocation) -> int:
        starts = first_lines.get(place.template, [])
        name = next((name for line, name in reversed(starts) if line <= place.line), place.template)
        return levels.get(name, 0)

    return level_of


def _redeclared(
    environment: ConfigEnvironment, config: Config, name: str, variables: Mapping[str, object]
) -> Iterator[Problem]:
    """Keys given twice, unless a template overrides the key of one that it extends or includes: that is meant so."""
    if not config.graph.redeclared:
        return
    paths = Paths(config.graph)
    level_of = _levels(environment.references(name, **variables)[0])
    for again in config.graph.redeclared:
        place, first = config.graph.place(again.mark), config.graph.place(again.first)
        if level_of(place) < level_of(first):
            continue
        path = paths.of(again.node) if again.node is not None else None
        message = f"{str(again.what)!r} is redeclared, first at {first}; the last one counts"
        yield Problem(kind="redeclared", error=place.error(message, path=path))
