"""The YAML tags of the template language, and the nodes that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from forgather_mem.config.graph.nodes import NO_DEFAULT, CallNode, DictNode, Kind, ListNode, Mark, Node, Value, VarNode
from forgather_mem.config.graph.scalars import STANDARD
from forgather_mem.config.source.syntax import FORMS, MAPPINGS, SEQUENCES
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

_TAG = re.compile(r"!(?P<word>[^:@]*)(?::(?P<constructor>[^@]*))?(?:@(?P<name>.*))?", re.DOTALL)
_POSITIONAL = re.compile(r"arg([0-9]{1,9})")
_KEY_AND_VALUE = re.compile(
    r"""(?P<key>[^\W\d][\w.-]{0,99})(?P<sep>[ \t\n]+|:(?!/))(?:[^\s!\[{"']\S*|[!\[{"'].*)""", re.DOTALL
)
_EXPLICIT = frozenset({"args", "kwargs"})
_LATENT, _FOLDERS = "latent_args", "submodule_searchpath"


class TemplateNodeError(Exception):
    """A mistake in a template, found where only the position in the rendered text is known."""

    def __init__(self, mark: Mark, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Tag:
    """A parsed tag.

    Attributes:
        word: "singleton", "list", ..., without the "!".
        constructor: The name to call; "" for none.
        name: From `@name`.
    """

    word: str
    constructor: str = ""
    name: str | None = None

    def __str__(self) -> str:
        return f"!{self.word}"

    def check_form(self, is_mapping: bool, mark: Mark) -> None:
        """Refuse content that it can't have.

        Raises:
            TemplateNodeError: for a mapping after `!list`, a sequence after `!dict`, and the like.
        """
        if is_mapping and self.word in SEQUENCES:
            hint = "for a list whose items have names write !dlist" if self.word == "list" else None
            raise TemplateNodeError(mark, f"{self} takes a sequence or nothing; this is a mapping", hint)
        if not is_mapping and self.word in MAPPINGS:
            hint = "write !list, or a key for each item" if self.word == "dlist" else None
            raise TemplateNodeError(mark, f"{self} takes a mapping; this is a sequence", hint)


def parse_tag(text: str, mark: Mark) -> Tag:
    """Parse a tag.

    >>> parse_tag("!singleton:torch.nn:Linear@head", 0)
    Tag(word='singleton', constructor='torch.nn:Linear', name='head')
    """
    found = _TAG.fullmatch(text)
    if found is None:
        shown = text.replace(STANDARD, "!!")
        types = "the types that can be written are !!str !!int !!float !!bool !!null !!map !!seq"
        types = f"did you mean {shown[1:]!r}?" if shown[2:].partition(":")[0] in (*CALLS, *FORMS) else types
        raise TemplateNodeError(mark, f"the tag {shown!r:.80} is not part of the template language", types)
    word, constructor, name = found["word"], found["constructor"] or "", found["name"] or None
    if word in CALLS:
        if not constructor:
            raise TemplateNodeError(mark, f"!{word} does not say what to call", f"write !{word}:module:name")
    elif word not in FORMS:
        known = [f"!{known}" for known in (*CALLS, *FORMS)]
        hint = did_you_mean(f"!{word}", known)
        if hint is None and ":" in text:
            hint = f"did you mean '!singleton:{text[1:] if text.count(':') == 1 else constructor}'?"
        raise TemplateNodeError(mark, f"unknown tag {text!r:.80}", hint or f"the tags are {', '.join(known)}")
    elif constructor:
        raise TemplateNodeError(
            mark, f"!{word} calls nothing, so {constructor!r:.80} has no meaning", f"write !{word}:@name for a name"
        )
    elif word == "var" and name:
        raise TemplateNodeError(mark, "!var takes no @name", "write !var and the name of the variable")
    return Tag(word, constructor, name)


def missing_colon_hint(text: object) -> str | None:
    """The question whether a colon, or the space behind it, is missing in a text that looks like a key and its value.

    >>> missing_colon_hint("lr 3"), missing_colon_hint("a text of several words"), missing_colon_hint("lr:3")
    ("is a ':' missing after 'lr'?", None, "is a space missing after 'lr:'?")
    """
    found = _KEY_AND_VALUE.fullmatch(text) if isinstance(text, str) else None
    if found and found["sep"] == ":":
        return f"is a space missing after '{found['key']}:'?"
    return f"is a ':' missing after {found['key']!r}?" if found else None


def sequence_node(tag: Tag | None, mark: Mark, items: Sequence[Value]) -> Node:
    """The node of a sequence with its tag, if any."""
    if tag is not None and tag.word in CALLS:
        return _call_node(tag, mark, positional=items)
    return _collection(ListNode, tag, mark, items, items=tuple(items))


def mapping_node(tag: Tag | None, mark: Mark, entries: Mapping[object, Value], marks: Mapping[object, Mark]) -> Node:
    """The node of a mapping with its tag, if any.

    Raises:
        TemplateNodeError: for arguments that can't be intended.
    """
    if tag is not None and tag.word in CALLS:
        return _call_node(tag, mark, written=entries, marks=marks)
    if tag is not None and tag.word == "var":
        return _var_node(mark, entries, marks)
    return _collection(DictNode, tag, mark, entries.values(), entries=entries, written=entries, marks=marks)


def _collection(kind: Callable[..., Node], tag: Tag | None, mark: Mark, values: Iterable[Value], **own: object) -> Node:
    children = _nodes(values)
    return kind(
        mark=mark,
        children=children,
        name=tag.name if tag else None,
        per_use=tag is None and any(child.per_use for child in children),
        is_singleton=tag is not None,
        form="" if tag is None else tag.word,
        **own,
    )


def _nodes(values: Iterable[Value]) -> tuple[Node, ...]:
    return tuple([value for value in values if isinstance(value, Node)])


def scalar_node(tag: Tag, mark: Mark, content: tuple[Value] | None, marks: Mapping[object, Mark]) -> Node:
    """The node of a tag followed by one scalar, or by nothing (None). For lists and mappings '' is nothing, too.

    `marks` has the position of a text without quotes.

    Raises:
        TemplateNodeError: for text after a tag that takes none.
    """
    if tag.word == "var":
        return _var_node(mark, {"name": content[0] if content else ""}, {})
    if tag.word in CALLS:
        return _call_node(tag, mark, positional=content or (), marks=marks)
    is_mapping = tag.word in MAPPINGS
    if content is not None and content[0] != "":
        hint = missing_colon_hint(content[0]) if is_mapping else "write each item in a line of its own, behind '- '"
        what = "mapping" if is_mapping else "sequence"
        raise TemplateNodeError(mark, f"{tag} takes a {what}, or nothing; this is text", hint)
    return mapping_node(tag, mark, {}, {}) if is_mapping else sequence_node(tag, mark, ())


def _call_node(
    tag: Tag,
    mark: Mark,
    *,
    positional: Sequence[Value] = (),
    written: Mapping[object, Value] | None = None,
    marks: Mapping[object, Mark] | None = None,
) -> CallNode:
    kind, key_marks = CALLS[tag.word], marks or {}
    plain: _Arguments = positional, {}, key_marks
    args, kwargs, key_marks = _arguments(written, key_marks, mark) if written else plain
    latent, searchpath = kwargs.get(_LATENT), kwargs.get(_FOLDERS)
    if _LATENT in kwargs or _FOLDERS in kwargs:
        kwargs = {key: value for key, value in kwargs.items() if key not in (_LATENT, _FOLDERS)}
    children = _nodes((*args, *kwargs.values(), latent))
    return CallNode(
        mark=mark, children=children, name=tag.name, per_use=kind == "factory",
        is_singleton=kind in ("singleton", "meta"), kind=kind, constructor=tag.constructor, args=tuple(args),
        kwargs=kwargs, latent=latent,
        searchpath=() if searchpath is None else _folders(searchpath, key_marks.get(_FOLDERS, mark)), marks=key_marks,
        written=written,
    )  # fmt: skip


_Arguments = tuple[Sequence[Value], Mapping[str, Value], Mapping[object, Mark]]


def _arguments(written: Mapping[object, Value], marks: Mapping[object, Mark], mark: Mark) -> _Arguments:
    for key in written:
        if not isinstance(key, str) or key.startswith(("arg", "kwargs")):
            break
    else:  # only keywords, the usual case
        return (), cast("Mapping[str, Value]", written), marks
    if _EXPLICIT.issuperset(written):
        return _explicit(written, marks, mark)
    kwargs: dict[str, Value] = {}
    numbered: dict[int, Value] = {}
    for key, value in written.items():
        key = _argument_name(key, marks.get(key, mark))
        if key.startswith("arg") and (found := _POSITIONAL.fullmatch(key)):
            numbered[int(found[1])] = value
        else:
            kwargs[key] = value
    # Forgather passes `args` beside a misspelt `kwargs`, or the reverse, on as keywords
    odd = next((key for key in kwargs if key not in _EXPLICIT), "")
    near = did_you_mean(odd, _EXPLICIT - kwargs.keys(), 0.7) if len(kwargs) == 2 else None
    if near and any(isinstance(kwargs.get(key), ListNode | DictNode) for key in _EXPLICIT):
        raise TemplateNodeError(marks.get(odd, mark), f"unknown key {odd!r} beside args and kwargs", near)
    return [numbered[position] for position in sorted(numbered)], kwargs, marks


def _argument_name(key: object, mark: Mark) -> str:
    if not isinstance(key, str):
        raise TemplateNodeError(mark, f"the name of an argument is text; this one is {key!r}")
    return key


def _explicit(written: Mapping[object, Value], marks: Mapping[object, Mark], mark: Mark) -> _Arguments:
    args, kwargs = written.get("args"), written.get("kwargs")
    if args is not None and not isinstance(args, ListNode):
        raise TemplateNodeError(marks.get("args", mark), "args is a list of positional arguments")
    if kwargs is None:
        return () if args is None else args.items, {}, marks
    if not isinstance(kwargs, DictNode) or kwargs.form == "dlist":
        raise TemplateNodeError(marks.get("kwargs", mark), "kwargs is a mapping of keyword arguments")
    named = {_argument_name(key, kwargs.marks.get(key, mark)): value for key, value in kwargs.entries.items()}
    return () if args is None else args.items, named, kwargs.marks


def _folders(value: Value, mark: Mark) -> tuple[str, ...]:
    items = value.items if isinstance(value, ListNode) else (value,)
    folders = tuple(item for item in items if isinstance(item, str))
    if len(folders) != len(items):
        raise TemplateNodeError(mark, f"{_FOLDERS} is a list of folders")
    return folders


def _var_node(mark: Mark, written: Mapping[object, Value], marks: Mapping[object, Mark]) -> VarNode:
    for key in written:
        if key not in ("name", "default"):
            hint = did_you_mean(str(key), ("name", "default")) or "the keys are name and default"
            raise TemplateNodeError(marks.get(key, mark), f"unknown key {key!r} of !var", hint)
    variable = written.get("name")
    if not isinstance(variable, str) or not variable:
        raise TemplateNodeError(
            mark, "!var does not say which variable", "write !var name, or !var { name: ..., default: ... }"
        )
    default = written.get("default", NO_DEFAULT)
    return VarNode(
        mark=mark,
        children=(default,) if isinstance(default, Node) else (),
        per_use=isinstance(default, Node) and default.per_use,
        variable=variable,
        default=default,
        marks=marks,
        written=written,
    )
