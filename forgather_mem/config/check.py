"""What can be known to be wrong with a template before anything of it is built?

Its text and its graph, names that the policy refuses, names that don't import, arguments that don't fit, variables
that nobody gives or uses. Only what the policy allows is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forgather_mem.config.environment import OWN_VARIABLE, Config, ConfigEnvironment
from forgather_mem.config.nodes import Paths
from forgather_mem.config.places import Place
from forgather_mem.config.refusal import Refused
from forgather_mem.config.syntax import split, to_jinja
from forgather_mem.errors import TemplateError, did_you_mean

Kind = Literal["template", "block", "refused", "misfit", "unbound", "unused", "redeclared"]

_BRACES = re.compile(r"\{[{%]|[}%]\}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[.\[][\s'\"]*([A-Za-z_]\w*)")  # of a variable: a.part, a["part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with a template, or worth knowing of it.

    Attributes:
        kind: "template": it can't be read; "block": it is printed nowhere; "refused": a name that the policy refuses;
            "misfit": a name that is not there, or arguments that don't fit it; "unbound": a variable without a value;
            "unused": a value without a variable; "redeclared": a key that stands twice, which is no mistake.
        error: What a person reads, with its place.
    """

    kind: Kind
    error: TemplateError

    @property
    def names(self) -> tuple[str, ...]:
        """The refused names that it is about."""
        return self.error.names if isinstance(self.error, Refused) else ()

    @property
    def entries(self) -> tuple[str, ...]:
        """The allow entries that open them."""
        return self.error.entries if isinstance(self.error, Refused) else ()

    @property
    def is_mistake(self) -> bool:
        """Whether something has to be done about it."""
        return self.kind != "redeclared"


def problems(environment: ConfigEnvironment, name: str, variables: Mapping[str, object]) -> list[Problem]:
    """Everything that is found, in the order of the stages.

    Args:
        environment: Where templates are looked for, with the policy.
        name: Name of the template.
        variables: What is given to it, for Jinja and for `!var`.
    """
    try:
        config = environment.load(name, **variables)
    except TemplateError as error:
        return [Problem(kind="template", error=error)]
    return [
        *(Problem(kind="block", error=error) for error in config.rendered.unknown_blocks),
        *refused(environment, config),
        *(problem for problem in _misfits(config) if problem.kind == "misfit"),
        *_unbound(config, variables),
        *unused(environment, config, name, variables),
        *_redeclared(config),
    ]


def refused(environment: ConfigEnvironment, config: Config) -> list[Problem]:
    """The names of all targets that the policy refuses: by their text, and by where the object is defined."""
    found = []
    for use in config.names():
        try:
            environment.policy.check([use])
        except Refused as error:
            found.append(Problem(kind="refused", error=error))
    return found + [problem for problem in _misfits(config) if problem.kind == "refused"]


def unused(
    environment: ConfigEnvironment, config: Config, name: str, variables: Mapping[str, object]
) -> Iterator[Problem]:
    """The given variables that neither the template nor any that it uses mentions: misspelt, most likely.

    Of a variable's parts (`a.b`) those that nearly are the name of a part which a template asks for: a template may
    also pass a mapping on as a whole.
    """
    if not variables:
        return
    known = {use.name for use in config.variables()}
    parts: set[str] = set()
    for _, _, file in environment.find_referenced_templates(name, **variables):
        for tag in _jinja_in(Path(file).read_text(encoding="utf-8-sig")) if file else ():
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


def _misfits(config: Config) -> Iterator[Problem]:
    for error in config.misfits():
        yield Problem(kind="refused" if isinstance(error, Refused) else "misfit", error=error)


def _unbound(config: Config, variables: Mapping[str, object]) -> Iterator[Problem]:
    seen = set()
    for use in config.variables():
        if use.has_default or use.name in variables or use.name == OWN_VARIABLE or use.name in seen:
            continue
        seen.add(use.name)
        message = f"the variable {use.name!r} has no default, so that a value must be given"
        hint = did_you_mean(use.name, variables)
        given = f"context_vars={{{use.name!r}: ...}} in Python, --set {use.name}=... here"
        error = use.place.error(message, path=use.path, hint=f"{hint} Else: {given}" if hint else given)
        yield Problem(kind="unbound", error=error)


def _jinja_in(text: str) -> Iterator[str]:
    """What stands in the Jinja tags of a template file."""
    for part in split(text):
        source, start = to_jinja(part.text), None
        for brace in _BRACES.finditer(source):
            if brace[0][0] == "{":
                start = brace.end() if start is None else start
            elif start is not None:
                yield source[start : brace.start()]
                start = None


def _redeclared(config: Config) -> Iterator[Problem]:
    paths = Paths(config.graph)
    for again in config.graph.redeclared:
        place: Place = config.graph.place(again.mark)
        path = paths.of(again.node) if again.node is not None else None
        message = f"{str(again.what)!r} is redeclared, first at {config.graph.place(again.first)}; the last one counts"
        yield Problem(kind="redeclared", error=place.error(message, path=path))
