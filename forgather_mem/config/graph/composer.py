"""Composes the events of a YAML parser into the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

from forgather_mem.config.graph.nodes import LINE, TEXT, DictNode, ListNode, Mark, Node, Redeclared, Value, step
from forgather_mem.config.graph.scalars import PLAIN_SPACE, STANDARD, convert, odd_blank, resolve
from forgather_mem.config.graph.tags import Tag, TemplateNodeError, mapping_node, parse_tag, scalar_node, sequence_node
from forgather_mem.config.limits import Limits
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import did_you_mean

_MISSPELT = 0.85  # a changed or lost letter is above; gc and gc2 are below
_LARGEST_KEY = 2**60  # larger ones can be chosen so that Python hashes all alike, and a mapping takes hours
_MERGE: Final = object()
_MISSING: Final = object()
NO_KEY: Final = object()
"""The mapping is waiting for a key."""

Written: TypeAlias = tuple[Mapping[object, Value], Mapping[object, Mark]]
"""The entries of a mapping as written, and the positions of their keys."""


@dataclass(slots=True, eq=False)
class OpenNode:
    """A sequence or mapping whose end has not been read yet."""

    tag: Tag | None
    anchor: str | None
    mark: Mark
    is_root: bool
    items: list[Value] | None  # of a sequence
    nodes: int  # the composer's counts when it began
    scalars: int
    key: object = NO_KEY
    key_mark: Mark = 0
    entries: dict[object, Value] = field(default_factory=dict)
    marks: dict[object, Mark] = field(default_factory=dict)
    merges: list[Written] = field(default_factory=list)
    repeats: list[tuple[object, Mark, Mark]] = field(default_factory=list)


class Anchor(NamedTuple):
    """The value of an anchor, and how much it counts."""

    value: Value
    nodes: int
    scalars: int


_OPEN: Final = Anchor(_MISSING, 0, 0)  # of what has not ended yet


class Composer:
    """Takes events one by one; after the last one, `documents` has the graph.

    Attributes:
        documents: The value of the document; none of an empty text.
        definitions: Entries of a root mapping whose key starts with a dot.
        redeclared: Keys given twice.
        vain: Where a key of a `!dlist` is null and removes nothing, in words.
        repeated_names: Each `@name` shared by several nodes.
        budgets: The limits.
    """

    def __init__(self, rendered: Rendered, budgets: Limits) -> None:
        self.budgets = budgets
        self.documents: list[Value] = []
        self.definitions: list[tuple[str, Value]] = []
        self.redeclared: list[Redeclared] = []
        self.vain: list[tuple[Mark, str]] = []
        self.repeated_names: set[str] = set()
        self.handlers: Mapping[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._on_scalar,
            yaml.AliasEvent: self._on_alias,
            yaml.MappingStartEvent: self._on_start,
            yaml.SequenceStartEvent: self._on_start,
            yaml.MappingEndEvent: self._on_end,
            yaml.SequenceEndEvent: self._on_end,
            yaml.DocumentStartEvent: self._on_document,
        }
        self._rendered = rendered
        self._frames = [OpenNode(None, None, 0, False, self.documents, 0, 0)]  # what is open, the innermost last
        self._plain: dict[str, object] = {}  # values of plain scalars; most of them repeat
        self._anchors: dict[str, Anchor] = {}
        self._tags: dict[str, Tag] = {}
        self._names: set[str] = set()
        self._left = budgets.nodes
        self._copies = 0  # entries copied by merge keys, and text that aliases repeat in pieces of 64 characters
        self._nodes = 0  # with every alias counted as a copy
        self._scalars = 0

    @property
    def path(self) -> str:
        """The path to what is being composed."""
        steps = []
        for frame in self._frames[1:]:
            if frame.items is not None:
                steps.append(f"[{len(frame.items)}]")
            elif frame.key is not NO_KEY:
                steps.append(".<<" if frame.key is _MERGE else step(frame.key))
        return "$" + "".join(steps)

    def _on_document(self, event: yaml.Event) -> None:
        if self.documents:
            hint = "remove the line '---' (or '...') between them"
            raise TemplateNodeError(mark_of(event), "a template is one YAML document; a second one starts here", hint)

    def _on_scalar(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        mark = mark_of(event)
        self._count(mark)
        if len(text) > self.budgets.string_bytes:
            limit = f"{self.budgets.string_bytes:,}"
            raise TemplateNodeError(mark, f"a string has {limit} characters at most; this one has {len(text):,}")
        scalars = 1 + (len(text) >> 6)  # a long text counts for several: aliases multiply its characters
        self._scalars += scalars
        frame = self._frames[-1]
        is_key = frame.items is None and frame.key is NO_KEY
        if not event.implicit[0]:
            is_tagged = event.tag not in (None, "!")
            value = self._tagged_scalar(event, mark) if is_tagged else self._rendered.put_back(text)
        else:
            value = self._plain.get(text, _MISSING)
            if value is _MISSING:
                value = self._plain[text] = self._plain_scalar(text, mark)
            if value is _MERGE and not is_key:
                value = text
        if event.anchor is not None:
            nodes = 1 if isinstance(value, Node) else 0
            self._anchors[event.anchor] = Anchor(text if value is _MERGE else value, nodes, scalars)
        self._attach(value, mark)

    def _plain_scalar(self, text: str, mark: Mark) -> object:
        if self._rendered.has_value(text):
            return self._rendered.put_back(text)
        return _MERGE if text == "<<" else _resolved(text, mark)

    def _on_alias(self, event: yaml.AliasEvent) -> None:
        mark = mark_of(event)
        name = event.anchor or ""
        self._count(mark)
        anchored = self._anchors.get(name)
        if anchored is _OPEN:
            raise TemplateNodeError(mark, f"the alias *{name} refers to what contains it")
        if anchored is None:
            below = f"move what has &{name} above this line" if f"&{name}" in self._rendered.text.split() else None
            near = below or did_you_mean(f"*{name}", [f"*{one}" for one in self._anchors])
            hint = near or f"write &{name} where it is made"
            raise TemplateNodeError(mark, f"there is no anchor &{name} before this alias", hint)
        if not isinstance(anchored.value, Node):
            self._repeat(anchored.scalars - 1, mark)
        self._nodes += anchored.nodes
        self._scalars += anchored.scalars
        self._attach(anchored.value, mark)

    def _on_start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        mark = mark_of(event)
        self._count(mark, 3)  # each takes as long as three scalars
        if len(self._frames) > self.budgets.depth:
            raise TemplateNodeError(mark, f"the template nests deeper than {self.budgets.depth:,} levels")
        is_mapping = type(event) is yaml.MappingStartEvent
        tag = None
        if event.tag is not None and event.tag != "!" and event.tag != STANDARD + ("map" if is_mapping else "seq"):
            tag = self._tag(event.tag, mark)
            tag.check_form(is_mapping, mark)
            self._count(mark)
        is_root, items = tag is None and len(self._frames) == 1, None if is_mapping else list[Value]()
        self._frames.append(OpenNode(tag, event.anchor, mark, is_root, items, self._nodes, self._scalars))
        self._nodes += 1
        if event.anchor is not None:
            self._anchors[event.anchor] = _OPEN

    def _on_end(self, event: yaml.Event) -> None:
        frame = self._frames.pop()
        if frame.items is None:
            node = self._mapping(frame)
        else:
            node = sequence_node(frame.tag, frame.mark, frame.items)
        nodes, scalars = self._nodes - frame.nodes, self._scalars - frame.scalars
        is_root_mapping = frame.is_root and frame.items is None  # targets may share everything
        if max(nodes, scalars) > self.budgets.expanded_nodes and not is_root_mapping:
            limit = f"{self.budgets.expanded_nodes:,}"
            hint = "it uses aliases of aliases, which multiply"
            raise TemplateNodeError(frame.mark, f"written out without aliases this has more than {limit} nodes", hint)
        if frame.anchor is not None:
            self._anchors[frame.anchor] = Anchor(node, nodes, scalars)
        self._attach(node, frame.mark)

    def _attach(self, value: Value, mark: Mark) -> None:
        frame = self._frames[-1]
        if frame.items is not None:
            frame.items.append(value)
        elif frame.key is NO_KEY:
            if type(value) is not str:
                self._check_key(value, mark)
            frame.key = value
            frame.key_mark = mark
        else:
            key, frame.key = frame.key, NO_KEY
            self._put(frame, key, value)

    def _check_key(self, key: Value, mark: Mark) -> None:
        if isinstance(key, Node):
            hint = "Jinja's braces stand together: {{ name }}" if isinstance(key, DictNode) else None
            raise TemplateNodeError(mark, "a key is a scalar; this one is a list, a mapping or a call", hint)
        if isinstance(key, int | float) and abs(key) >= _LARGEST_KEY:
            raise TemplateNodeError(mark, f"a number that is a key is below {_LARGEST_KEY:,}", "quote it")

    def _put(self, frame: OpenNode, key: object, value: Value) -> None:
        if key is _MERGE:
            nodes = [*reversed(value.items)] if isinstance(value, ListNode) and value.form == "" else [value]
            read = [(node.written, node.marks) for node in nodes if isinstance(node, Node) and node.written is not None]
            if len(read) < len(nodes):
                raise TemplateNodeError(frame.key_mark, "a merge key (<<) takes a mapping, or a list of mappings")
            frame.merges += read  # lowest precedence first
            return
        if frame.is_root and isinstance(key, str) and key.startswith("."):
            self.definitions.append((key, value))
            return
        if key in frame.entries:
            frame.repeats.append((key, frame.key_mark, frame.marks[key]))
        frame.entries[key] = value
        frame.marks[key] = frame.key_mark

    def _mapping(self, frame: OpenNode) -> Node:
        entries, marks = frame.entries, frame.marks
        if frame.merges:
            entries, marks = {}, {}
            for written, places in frame.merges:
                texts = (len(value) >> 6 for value in written.values() if type(value) is str)
                self._repeat(len(written) + sum(texts), frame.mark)
                entries |= written
                marks |= places
            entries |= frame.entries
            marks |= frame.marks
        node = mapping_node(frame.tag, frame.mark, entries, marks)
        self.redeclared += (Redeclared(key, mark, first, node) for key, mark, first in frame.repeats)
        if isinstance(node, DictNode) and node.form == "dlist":
            self._look_for_nulls(frame, node)
        return node

    def _look_for_nulls(self, frame: OpenNode, node: DictNode) -> None:
        """A null removes what its key had before: with a misspelt key it would do nothing, and nobody would notice."""
        given: set[object] = {key for key, _, _ in frame.repeats}.union(*(written for written, _ in frame.merges))
        given.add(None)  # `null: ~` is how an empty list is written
        others = [str(key) for key, value in node.entries.items() if value is not None]
        for key in [key for key, value in frame.entries.items() if value is None and key not in given]:
            message = f"there is no {str(key)!r} to remove"
            if near := did_you_mean(str(key), others, _MISSPELT):
                raise TemplateNodeError(frame.marks[key], message, near)
            self.vain.append((frame.marks[key], message))

    def _repeat(self, amount: int, mark: Mark) -> None:
        """Count what stands in several places, entries and pieces of text: whoever shows the graph writes all of it."""
        self._copies += amount
        if self._copies > self.budgets.nodes:
            limit = f"{self.budgets.nodes:,} entries, or {self.budgets.nodes << 6:,} characters of text"
            raise TemplateNodeError(mark, f"aliases and merge keys repeat more than {limit}")

    def _tagged_scalar(self, event: yaml.ScalarEvent, mark: Mark) -> Value:
        text, tag_text = self._rendered.put_back(event.value), event.tag or ""
        if tag_text.startswith(STANDARD):
            try:
                return convert(tag_text, text)
            except ValueError as error:
                raise TemplateNodeError(mark, str(error)) from None
            except LookupError:
                pass  # `parse_tag` refuses it
        tag = self._tag(tag_text, mark)
        self._count(mark, 2)
        self._nodes += 1
        is_empty = text == "" and not event.style
        is_text = bool(event.style) or text != event.value or not tag.constructor  # of a call
        marks: dict[object, Mark] = {} if event.style or not text else {TEXT: _mark_of_text(event)}
        content = text if is_text else _resolved(text, marks.get(TEXT, mark))
        return scalar_node(tag, mark, None if is_empty else (content,), marks)

    def _tag(self, text: str, mark: Mark) -> Tag:
        tag = self._tags.get(text)
        if tag is None:
            tag = self._tags[text] = parse_tag(text, mark)
        if tag.name is not None:
            (self.repeated_names if tag.name in self._names else self._names).add(tag.name)
        return tag

    def _count(self, mark: Mark, nodes: int = 1) -> None:
        self._left -= nodes
        if self._left < 0:
            raise TemplateNodeError(mark, f"the template has more than {self.budgets.nodes:,} nodes")


def mark_of(event: yaml.Event) -> Mark:
    """Where an event of a parser begins."""
    start = event.start_mark
    assert start is not None  # set for every event of a parser
    return (start.line + 1) * LINE + start.column + 1


def _mark_of_text(event: yaml.ScalarEvent) -> Mark:
    """Where an unquoted text begins behind its tag; of one in several lines that of the tag."""
    end = event.end_mark
    assert end is not None  # set for every event of a parser
    column = end.column - len(event.value) + 1
    return (end.line + 1) * LINE + column if column > 0 else mark_of(event)


def _resolved(text: str, mark: Mark) -> object:
    if odd := odd_blank(text):
        raise TemplateNodeError(mark, odd, PLAIN_SPACE)
    try:
        return resolve(text)
    except ValueError as error:
        raise TemplateNodeError(mark, str(error)) from None
