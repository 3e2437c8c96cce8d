"""What does a YAML tag of the template language say, and which node does it make of what follows it?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from forgather_mem.config.nodes import NO_DEFAULT, CallNode, DictNode, Kind, ListNode, Mark, Node, Value, VarNode
from forgather_mem.config.scalars import STANDARD
from forgather_mem.errors import did_you_mean

CALLS: Mapping[str, Kind] = {
    "singleton": "singleton",
    "call": "singleton",
    "factory": "factory",
    "partial": "partial",
    "lambda": "partial",
    "meta": "meta",
}
"""Tags that call something."""

FORMS = ("list", "dlist", "dict", "tuple", "var")
"""Tags that don't."""

_TAG = re.compile(r"!(?P<word>[^:@]*)(?::(?P<constructor>[^@]*))?(?:@(?P<name>.*))?", re.DOTALL)
_POSITIONAL = re.compile(r"arg([0-9]{1,9})")
_EXPLICIT = frozenset({"args", "kwargs"})
_LATENT, _FOLDERS = "latent_args", "submodule_searchpath"


class Wrong(Exception):
    """A mistake in a template, found where only the position in the rendered text is known."""

    def __init__(self, mark: Mark, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag, taken apart.

    Attributes:
        word: "singleton", "list", ...: without "!".
        constructor: What to call; "" for none.
        name: From `@name`.
    """

    word: str
    constructor: str = ""
    name: str | None = None

    def __str__(self) -> str:
        return f"!{self.word}"


def parse_tag(text: str, mark: Mark) -> Tag:
    """Take a tag apart.

    >>> parse_tag("!singleton:torch.nn:Linear@head", 0)
    Tag(word='singleton', constructor='torch.nn:Linear', name='head')
    """
    found = _TAG.fullmatch(text)
    if found is None:
        _refuse_standard(text, mark)
    word, constructor, name = found["word"], found["constructor"] or "", found["name"] or None
    if word in CALLS:
        if not constructor:
            raise Wrong(mark, f"!{word} does not say what to call", f"write !{word}:module:name")
    elif word not in FORMS:
        known = [f"!{known}" for known in (*CALLS, *FORMS)]
        hint = did_you_mean(f"!{word}", known)
        if hint is None and ":" in text:
            hint = f"did you mean '!singleton:{text[1:]}'?"
        raise Wrong(mark, f"unknown tag {_short(text)!r}", hint or f"the tags are {', '.join(known)}")
    elif constructor:
        raise Wrong(
            mark, f"!{word} calls nothing, so {_short(constructor)!r} has no meaning", f"write !{word}:@name for a name"
        )
    elif word == "var" and name:
        raise Wrong(mark, "!var takes no @name", "write !var and the name of the variable")
    return Tag(word, constructor, name)


def _refuse_standard(text: str, mark: Mark) -> NoReturn:
    shown = text.replace(STANDARD, "!!")
    types = "the types that can be written are !!str !!int !!float !!bool !!null !!map !!seq"
    raise Wrong(mark, f"the tag {_short(shown)!r} is not part of the template language", types)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def is_shorthand(names: Iterable[str]) -> bool:
    """Whether keyword arguments may stand in the mapping of a call as they are, without `kwargs:`.

    >>> is_shorthand(["lr"]), is_shorthand(["args"]), is_shorthand(["arg0"])
    (True, False, False)
    """
    return not any(name in _EXPLICIT or _POSITIONAL.fullmatch(name) for name in names)


def check_form(tag: Tag, is_mapping: bool, mark: Mark) -> None:
    """Refuse a tag before what it can't be made of.

    Raises:
        Wrong: for a mapping after `!list`, a sequence after `!dict`, and the like.
    """
    if is_mapping and tag.word in ("list", "tuple"):
        hint = "for a list whose items have names write !dlist" if tag.word == "list" else None
        raise Wrong(mark, f"{tag} takes a sequence, or nothing; here stands a mapping", hint)
    if not is_mapping and tag.word in ("dict", "dlist", "var"):
        raise Wrong(mark, f"{tag} takes a mapping; here stands a sequence")


def sequence_node(tag: Tag | None, mark: Mark, items: Sequence[Value]) -> Node:
    """The node of a sequence and its tag, if it has one."""
    if tag is not None and tag.word in CALLS:
        return _call_node(tag, mark, positional=items)
    children = _nodes(items)
    return ListNode(
        mark=mark,
        children=children,
        name=tag.name if tag else None,
        fresh=tag is None and any(child.fresh for child in children),
        once=tag is not None,
        items=tuple(items),
        form="" if tag is None else "tuple" if tag.word == "tuple" else "list",
    )


def mapping_node(tag: Tag | None, mark: Mark, entries: Mapping[object, Value], marks: Mapping[object, Mark]) -> Node:
    """The node of a mapping and its tag, if it has one.

    Raises:
        Wrong: for arguments that can't be meant.
    """
    if tag is not None and tag.word in CALLS:
        return _call_node(tag, mark, written=entries, marks=marks)
    if tag is not None and tag.word == "var":
        return _var_node(mark, entries, marks)
    children = _nodes(entries.values())
    return DictNode(
        mark=mark,
        children=children,
        name=tag.name if tag else None,
        fresh=tag is None and any(child.fresh for child in children),
        once=tag is not None,
        entries=entries,
        marks=marks,
        form="" if tag is None else "dlist" if tag.word == "dlist" else "dict",
    )


def _nodes(values: Iterable[Value]) -> tuple[Node, ...]:
    return tuple([value for value in values if isinstance(value, Node)])


def scalar_node(tag: Tag, mark: Mark, content: tuple[Value] | None) -> Node:
    """The node of a tag with one scalar after it, or with nothing (None).

    Raises:
        Wrong: for text after a tag that takes none.
    """
    if tag.word == "var":
        return _var_node(mark, {"name": content[0] if content else ""}, {})
    if tag.word in CALLS:
        return _call_node(tag, mark, positional=content or ())
    is_mapping = tag.word in ("dict", "dlist")
    if content is not None:
        raise Wrong(mark, f"{tag} takes a {'mapping' if is_mapping else 'sequence'}, or nothing; here stands text")
    return mapping_node(tag, mark, {}, {}) if is_mapping else sequence_node(tag, mark, ())


def _call_node(
    tag: Tag,
    mark: Mark,
    *,
    positional: Sequence[Value] = (),
    written: Mapping[object, Value] | None = None,
    marks: Mapping[object, Mark] | None = None,
) -> CallNode:
    kind = CALLS[tag.word]
    args: Sequence[Value] = positional
    kwargs: Mapping[str, Value] = {}
    key_marks = marks or {}
    if written:
        args, kwargs, key_marks = _arguments(written, key_marks, mark)
    latent = searchpath = None
    if _LATENT in kwargs or _FOLDERS in kwargs:
        latent, searchpath = kwargs.get(_LATENT), kwargs.get(_FOLDERS)
        kwargs = {key: value for key, value in kwargs.items() if key not in (_LATENT, _FOLDERS)}
    children = _nodes((*args, *kwargs.values(), latent))
    return CallNode(
        mark=mark,
        children=children,
        name=tag.name,
        fresh=kind == "factory",
        once=kind in ("singleton", "meta"),
        kind=kind,
        constructor=tag.constructor,
        args=tuple(args),
        kwargs=kwargs,
        latent=latent,
        searchpath=() if searchpath is None else _folders(searchpath, key_marks.get(_FOLDERS, mark)),
        marks=key_marks,
        written=written,
    )


_Arguments = tuple[Sequence[Value], Mapping[str, Value], Mapping[object, Mark]]


def _arguments(written: Mapping[object, Value], marks: Mapping[object, Mark], mark: Mark) -> _Arguments:
    for key in written:
        if not isinstance(key, str) or key.startswith(("arg", "kwargs")):
            break
    else:  # nothing but keywords, as most often
        return (), cast("Mapping[str, Value]", written), marks
    if _EXPLICIT.issuperset(written):
        return _explicit(written, marks, mark)
    kwargs: dict[str, Value] = {}
    numbered: dict[int, Value] = {}
    for key, value in written.items():
        if not isinstance(key, str):
            raise Wrong(marks.get(key, mark), f"the name of an argument is text; this one is {key!r}")
        if key.startswith("arg") and (found := _POSITIONAL.fullmatch(key)):
            if int(found[1]) in numbered:
                raise Wrong(marks.get(key, mark), f"{key!r} gives a positional argument that is there already")
            numbered[int(found[1])] = value
        else:
            kwargs[key] = value
    if not _EXPLICIT.isdisjoint(kwargs) and len(kwargs) == 2:
        _refuse_near_miss(kwargs, marks, mark)
    return [numbered[position] for position in sorted(numbered)], kwargs, marks


def _explicit(written: Mapping[object, Value], marks: Mapping[object, Mark], mark: Mark) -> _Arguments:
    args, kwargs = written.get("args"), written.get("kwargs")
    if args is not None and not isinstance(args, ListNode):
        hint = "write kwargs: { args: ... } for an argument that is called args"
        raise Wrong(marks.get("args", mark), "args is a list of positional arguments", hint)
    if kwargs is None:
        return () if args is None else args.items, {}, marks
    if not isinstance(kwargs, DictNode) or kwargs.form == "dlist":
        hint = "write kwargs: { kwargs: ... } for an argument that is called kwargs"
        raise Wrong(marks.get("kwargs", mark), "kwargs is a mapping of keyword arguments", hint)
    named: dict[str, Value] = {}
    for key, value in kwargs.entries.items():
        if not isinstance(key, str):
            raise Wrong(kwargs.marks.get(key, mark), f"the name of an argument is text; this one is {key!r}")
        named[key] = value
    return () if args is None else args.items, named, kwargs.marks


def _refuse_near_miss(kwargs: Mapping[str, Value], marks: Mapping[object, Mark], mark: Mark) -> None:
    """`args` beside a misspelt `kwargs`, or the other way round: Forgather passes both on as keywords."""
    meant = next(iter(_EXPLICIT - kwargs.keys()), "")
    other = next((key for key in kwargs if key not in _EXPLICIT), "")
    near = difflib.SequenceMatcher(None, other, meant).ratio() > 0.7
    explicit = kwargs["args"] if meant == "kwargs" else kwargs["kwargs"]
    if near and isinstance(explicit, ListNode if meant == "kwargs" else DictNode):
        raise Wrong(marks.get(other, mark), f"unknown key {other!r} beside args and kwargs", f"did you mean {meant!r}?")


def _folders(value: Value, mark: Mark) -> tuple[str, ...]:
    items = value.items if isinstance(value, ListNode) else (value,)
    folders = tuple(item for item in items if isinstance(item, str))
    if len(folders) != len(items):
        raise Wrong(mark, f"{_FOLDERS} is a list of folders")
    return folders


def _var_node(mark: Mark, written: Mapping[object, Value], marks: Mapping[object, Mark]) -> VarNode:
    for key in written:
        if key not in ("name", "default"):
            hint = did_you_mean(str(key), ("name", "default")) or "the keys are name and default"
            raise Wrong(marks.get(key, mark), f"unknown key {key!r} of !var", hint)
    variable = written.get("name")
    if not isinstance(variable, str) or not variable:
        raise Wrong(mark, "!var does not say which variable", "write !var name, or !var { name: ..., default: ... }")
    default = written.get("default", NO_DEFAULT)
    return VarNode(
        mark=mark,
        children=(default,) if isinstance(default, Node) else (),
        fresh=isinstance(default, Node) and default.fresh,
        variable=variable,
        default=default,
        marks=marks,
        written=written,
    )
