"""Checks a template without building the user's objects: syntax, names, arguments, variables.

It finds syntax errors, names that the policy refuses or that can't be imported, arguments and values that don't fit,
and variables that are missing or unused. Only what the policy allows is imported.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forgather_mem.config.construction.resolve import MAX_NAMES
from forgather_mem.config.environment import Config
from forgather_mem.config.graph.nodes import SHOWN, CallNode, DictNode, Paths, VarNode, built_of, in_a_line, items_of
from forgather_mem.config.graph.tags import missing_colon_hint
from forgather_mem.config.policy.denied import Refused, similar_name
from forgather_mem.config.source.rendered import SourceLocation
from forgather_mem.errors import TemplateError, did_you_mean, nearest

logger = logging.getLogger(__name__)

Kind = Literal["template", "block", "refused", "misfit", "unbound", "unused", "untargeted", "unbuilt", "redeclared"]

CALLBACKS = "trainer_callbacks"
"""The target that is built where nobody names another."""


_BLANK = re.compile(r"\s*(#|---|$)")
_WORKS = "rules: [!singleton:forgather_mem:Rule { when: ..., do: [...] }]"
# Where in a callback that belongs which has this member
_INSIDE = {
    "do": "rules: [...]", "write": "sinks: [...]", "on_epoch_start": "monitor: ...", "begin": _WORKS, "books": _WORKS,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with a template, or worth knowing about it.

    Attributes:
        kind: "template": it can't be read, has no targets since a ':' is missing, or its callbacks are none; "block": a
            block that is never printed, or that loses what its parent has, or a null outside of the list; "refused": a
            name that the policy refuses; "misfit": a name that doesn't exist, or arguments that don't fit it;
            "unbound": a variable without a value; "unused": a value without a variable; "untargeted": a list,
            and no other, that has to be asked for by its name; "unbuilt": a callback that was meant to be in the list,
            or in place of another; "redeclared": a key given twice in one template, or a null for none. The last two
            are not mistakes.
        error: The message for people, with its location.
    """

    kind: Kind
    error: TemplateError

    @property
    def is_mistake(self) -> bool:
        """Whether it has to be fixed: of what is found, all but a key given twice, and a callback beside the list."""
        return self.kind not in ("redeclared", "unbuilt")


def problems_of(config: Config, variables: Mapping[str, object], target: str) -> list[Problem]:
    """All problems found, in the order of the stages.

    Args:
        config: The loaded template.
        variables: Its variables, for Jinja and for `!var`.
        target: The list of callbacks.
    """
    misfits = config.misfits(context_vars=variables)
    calls = ((config.callee(item), item, place) for item, place in _items(config, target) if isinstance(item, CallNode))
    found = (
        (Problem(kind="block", error=error) for error in (*config.rendered.unknown_blocks, *config.lost().values())),
        (Problem(kind="refused", error=error) for error in refused(config, misfits)),
        (Problem(kind="misfit", error=error) for error in misfits if not isinstance(error, Refused)),
        (Problem(kind="unbound", error=error) for error in config.unbound(variables)),
        unused(config, variables),
        _without_targets(config),
        no_callbacks(config, target),
        _of_no_trainer(target, (call for call in calls if isinstance(call[0], type))),
        _beside(config, target),
        _redeclared(config),
    )
    return [problem for stage in found for problem in itertools.islice(stage, MAX_NAMES)]


def refused(config: Config, misfits: Iterable[TemplateError] | None = None) -> list[Refused]:
    """What the policy refuses: names by their text, and by where the object is defined; addresses, also computed ones.

    Args:
        config: The loaded template.
        misfits: What `Config.misfits` found, where that is known already.
    """
    found = []
    for use in config.names():
        try:
            config.policy.check([use])
        except Refused as error:
            found.append(error)
    known = config.misfits() if misfits is None else misfits
    return found + [error for error in known if isinstance(error, Refused)]


def unused(config: Config, variables: Mapping[str, object], path: str = "") -> Iterator[Problem]:
    """Variables given but mentioned neither in the template nor in any that it uses: probably misspelt.

    Of a variable's parts (`a.b`), only those close to a name that some template mentions: a template may also pass on a
    mapping as a whole.
    """
    known = config.rendered.mentioned | {node.variable for node in config.variables()}
    for key, value in variables.items():
        if key not in known and ((hint := did_you_mean(key, known)) or not path):
            message = f"no template uses the variable {path + key!r}"
            yield Problem(kind="unused", error=TemplateError(message, template=config.rendered.name, hint=hint))
        if isinstance(value, Mapping):
            yield from unused(config, value, f"{path}{key}.")


def _without_targets(config: Config) -> Iterator[Problem]:
    """A document that is one text, because the ':' behind its only key is missing."""
    text, hint = config.rendered.text, missing_colon_hint(config.graph.root)
    if hint is not None and not text.lstrip().startswith(("'", '"', "|", ">")):
        line = next(number for number, line in enumerate(text.split("\n"), 1) if not _BLANK.match(line))
        message = "the document is one text, so it has no targets"
        yield Problem(kind="template", error=config.rendered.place(line).error(message, path="$", hint=hint))


def no_callbacks(config: Config, target: str = CALLBACKS) -> Iterator[Problem]:
    """Why a target can't be the list of a trainer's callbacks, as far as that is seen; or that there is none."""
    graph = config.graph
    if target not in config.targets:
        lists = [name for name in config.targets if _may_be_callbacks(name, items_of(graph.target(name)) or ())]
        for name in lists[:1] if target not in config.lost() else ():
            message = f"there is no target {target!r}" + ", which load_callbacks() builds" * (target == CALLBACKS)
            hint = f"rename {name!r}, or write load_callbacks(..., target={name!r}), and check with --target {name}"
            kind: Kind = "template" if nearest(name, [target], 0.8) else "untargeted"
            yield Problem(kind=kind, error=graph.place_of(name).error(message, hint=hint))
        if graph.root is None:
            message, name = "the template is empty, so it has no targets", config.rendered.name
            begin = "begin each block with == super(), which prints the parent's"
            begin = begin if config.rendered.parent else f"write {target}: !list, and below it - !singleton:module:name"
            yield Problem(kind="template", error=TemplateError(message, template=name, hint=begin))
        return
    value = graph.target(target)
    is_open = isinstance(value, VarNode) or (isinstance(value, CallNode) and built_of(value).islower())  # a function
    if items_of(value) is None and not is_open:
        yield Problem(kind="template", error=_no_list(config, target, built_of(value)))
    for item, place in _items(config, target) if items_of(value) else ():
        if not isinstance(item, CallNode | VarNode) or (isinstance(item, CallNode) and item.kind == "partial"):
            only = next(iter(item.entries), None) if isinstance(item, DictNode) else item
            near = similar_name(only) if isinstance(only, str) else None
            hint = f"write !singleton:{near or 'module:name'}; an argument of the callback above is indented"
            hint += ", and null removes one" * isinstance(value, DictNode) + ", without quotes" * (item == "null")
            if isinstance(item, DictNode) and isinstance(value, DictNode) and not item.form:  # replaces the whole
                hint = "arguments stand below their callback: write its !singleton:module:name again behind the key"
            yield _no_callback(target, in_a_line(item), place, hint)


def _items(config: Config, target: str) -> list[tuple[object, SourceLocation]]:
    """What is in the list of callbacks, and where."""
    return config.graph.items(target, config.rendered.text) if target in config.targets else []


def _of_no_trainer(target: str, made: Iterable[tuple[object, object, SourceLocation]]) -> Iterator[Problem]:
    """What no trainer can call, of objects or classes in the list of callbacks, each as it is written, and where."""
    for thing, item, place in made:
        if not hasattr(thing, "on_init_end"):  # what a trainer calls first
            inside = next((inside for member, inside in _INSIDE.items() if hasattr(thing, member)), None)
            hint = f"it goes into !singleton:forgather_mem.callbacks:MemoryCallback {{ {inside} }}"
            hint = hint if inside else "name a class that is a transformers.TrainerCallback"
            yield _no_callback(target, type(thing).__name__ if item is None else in_a_line(item), place, hint)


def _no_callback(target: str, what: str, place: SourceLocation, hint: str) -> Problem:
    return Problem(kind="template", error=place.error(f"{what} in {target!r} is no callback", hint=hint))


def _beside(config: Config, target: str = CALLBACKS) -> Iterator[Problem]:
    """Targets that look as if they were meant to be in the list of callbacks, as a line that is not indented; and keys
    that look as if they were meant to replace a callback of a template below."""
    if target not in config.targets:
        return
    callbacks = config.graph.target(target)
    keys, marks = (callbacks.entries, callbacks.marks) if isinstance(callbacks, DictNode) else ({}, {})
    some = itertools.islice(keys, MAX_NAMES)
    made = {str(key): (config.graph.place(marks[key]), built_of(keys[key])) for key in some}
    for key, (place, what) in made.items():
        others = [one for one, (at, other) in made.items() if other == what and at.level > place.level]
        if near := did_you_mean(key, [one for one in others if not key.startswith(one)], 0.8):
            yield Problem(kind="unbuilt", error=place.error(f"{key!r} adds another {what}", hint=near))
    inside = {id(node) for node in config.reached([target])}
    for name in config.targets:
        value, place = config.graph.target(name), config.graph.place_of(name)
        is_callback = isinstance(value, CallNode) and id(value) not in inside and _may_be_callbacks("", [value])
        if (value is None and name.strip() in keys) or (is_callback and keys):
            message = f"{name.strip()!r} is a target of its own here, which changes nothing of {target!r}"
            hint = f"indent it with spaces, as the keys of {target!r}"
            yield Problem(kind="unbuilt" if is_callback else "block", error=place.error(message, hint=hint))


def callbacks_of(config: Config, target: str, context_vars: Mapping[str, object] | None) -> list[object]:
    """The callbacks that a target builds, new ones each time.

    Raises:
        TemplateError: if it is no list of callbacks, or can't be built.
    """
    for problem in (*no_callbacks(config, target), *_beside(config, target), *_redeclared(config)):
        if problem.is_mistake:
            raise problem.error
        logger.warning("%s", problem.error)
    built = config.construct(target, context_vars=context_vars)
    if items_of(config.graph.target(target)) is None and not isinstance(built, list | tuple):  # a call's, a variable's
        raise _no_list(config, target, f"of type {type(built).__name__}")
    written = itertools.chain(_items(config, target), itertools.repeat((None, config.graph.place_of(target))))
    for problem in _of_no_trainer(target, ((thing, *of) for thing, of in zip(built, written, strict=False))):
        raise problem.error
    return list(built)


def _no_list(config: Config, target: str, what: str) -> TemplateError:
    message = f"the target {target!r} is no list of callbacks; it is {what}"
    hint = f"write {target}: !list, below it - !singleton:module:name"
    hint = f"write it as !dlist:@{target}" if isinstance(config.graph.target(target), DictNode) else hint
    return config.graph.place_of(target).error(message, hint=hint)


def _may_be_callbacks(name: str, items: Sequence[object]) -> bool:
    called = [str(getattr(item, "constructor", item)) for item in items if isinstance(item, CallNode | str)]
    return len(called) == len(items) > 0 and "callback" in " ".join((name, *called)).lower()


def results(config: Config, target: str = CALLBACKS) -> str:
    """What comes of a template, in a few words: its callbacks, else its targets."""
    names = [target] if target in config.targets else config.targets
    told = "; ".join(f"{name} = {built_of(config.graph.target(name))}" for name in names[: SHOWN.items]) or "no targets"
    return told if target in names else f"{told}; no {CALLBACKS}, which load_callbacks() builds"


def _redeclared(config: Config) -> Iterator[Problem]:
    """Keys given twice, unless a template overrides the key of one that it extends or includes: that is meant so."""
    paths = Paths(config.graph) if config.graph.redeclared else None
    for again in config.graph.redeclared:
        place, first = config.graph.place(again.mark), config.graph.place(again.first)
        if place.level >= first.level:
            path = paths.of(again.node) if paths else None
            message = f"{str(again.what)!r} is redeclared, first at {first}; the last one counts"
            yield Problem(kind="redeclared", error=place.error(message, path=path, hint="remove one, or rename it"))
        elif again.what == CALLBACKS:
            message = f"{CALLBACKS!r} is given anew; what stands in it above, from {first} on, is lost"
            yield Problem(kind="redeclared", error=place.error(message))
    for mark, message in config.graph.vain:
        yield Problem(kind="redeclared", error=config.graph.place(mark).error(message))
