"""Checks a template without building anything: syntax, names, arguments, variables.

It finds syntax errors, names that the policy refuses or that can't be imported, arguments that don't fit, and variables
that are missing or unused. Only what the policy allows is imported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from forgather_mem.config.construction.resolve import OWN_VARIABLE
from forgather_mem.config.environment import Config, ConfigEnvironment
from forgather_mem.config.graph.nodes import Paths
from forgather_mem.config.policy.denied import Refused
from forgather_mem.config.source.location import SourceLocation
from forgather_mem.config.source.syntax import split, to_jinja
from forgather_mem.errors import TemplateError, did_you_mean
from forgather_mem.files import read_file

Kind = Literal["template", "block", "refused", "misfit", "unbound", "unused", "redeclared"]

_MAX_BYTES = 1 << 30  # it was loaded, so that it is not larger than the limit of a load
_MAX_FOUND = 1_000  # of each kind
_BRACES = re.compile(r"\{[{%]|[}%]\}")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[.\[][\s'\"]*([A-Za-z_]\w*)")  # part of a variable: a.part, a["part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a template, or worth knowing about it.

    Attributes:
        kind: "template": it can't be read; "block": a block that is never printed; "refused": a name that the policy
            refuses; "misfit": a name that doesn't exist, or arguments that don't fit it; "unbound": a variable without
            a value; "unused": a value without a variable; "redeclared": a key given twice, which is not a mistake.
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
        """All problems found, in the order of the stages."""
        return self.kind != "redeclared"


def problems(environment: ConfigEnvironment, name: str, variables: Mapping[str, object]) -> list[Problem]:
    """All problems found, in the order of the stages.

    Args:
        environment: Where templates are looked for, with the policy.
        name: Name of the template.
        variables: Its variables, for Jinja and for `!var`.
    """
    try:
        config = environment.load(name, **variables)
    except TemplateError as error:
        return [Problem(kind="template", error=error)]
    misfits = list(_misfits(config))
    found = (
        (Problem(kind="block", error=error) for error in config.rendered.unknown_blocks),
        refused(environment, config, misfits),
        (problem for problem in misfits if problem.kind == "misfit"),
        _unbound(config, variables),
        unused(environment, config, name, variables),
        _redeclared(config),
    )
    return [problem for stage in found for problem in itertools.islice(stage, _MAX_FOUND)]


def refused(environment: ConfigEnvironment, config: Config, misfits: Iterable[Problem] | None = None) -> list[Problem]:
    """The names of all targets that the policy refuses: by their text, and by where the object is defined.

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
        problem for problem in (_misfits(config) if misfits is None else misfits) if problem.kind == "refused"
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


def _misfits(config: Config) -> Iterator[Problem]:
    for error in config.misfits():
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


def _redeclared(config: Config) -> Iterator[Problem]:
    paths = Paths(config.graph)
    for again in config.graph.redeclared:
        place: SourceLocation = config.graph.place(again.mark)
        path = paths.of(again.node) if again.node is not None else None
        message = f"{str(again.what)!r} is redeclared, first at {config.graph.place(again.first)}; the last one counts"
        yield Problem(kind="redeclared", error=place.error(message, path=path))
