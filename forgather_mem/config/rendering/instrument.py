"""Rewrites a parsed template before it is compiled.

The sandbox can intercept operators, calls, attributes and filters. What else must know of strings from outside, or of
where a text comes from, is turned into a filter here: `in`, `~`, what is printed, and the names of templates. The
names of these filters begin with a space, so no template can write them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

from forgather_mem.config.source.tokens import ORIGIN_CLOSE, ORIGIN_OPEN

_NEWLINE_FIRST = re.compile(f"(?:{ORIGIN_OPEN}[0-9.]+{ORIGIN_CLOSE})?\n")
_TAG = re.compile(r"\s*\{%(?:(?!%\}).)*%\}\s*")
_SILENT = (nodes.Assign, nodes.AssignBlock, nodes.Macro, nodes.Import, nodes.FromImport, nodes.ExprStmt)
_USED = {nodes.Extends: "extended", nodes.Import: "imported", nodes.FromImport: "imported", nodes.Include: "included"}


@dataclass(slots=True)
class Outline:
    """What is known of a template from its text alone.

    Attributes:
        blocks: Line of each block.
        outer_blocks: Blocks outside any other block.
        used_blocks: Blocks that it prints itself with `self.name()`.
        names: Variables that it sets, with the line of `-- set`, or 0.
        mentioned: Names in its expressions: of variables that it reads, of attributes, and texts, which may be keys.
        outside: The first line that would be printed if the template extended no other; None if there is none.
    """

    blocks: dict[str, int] = field(default_factory=dict)
    outer_blocks: list[str] = field(default_factory=list)
    used_blocks: set[str] = field(default_factory=set)
    names: dict[str, int] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    outside: int | None = None


class Instrument(NodeTransformer):
    """Rewrites one template.

    Args:
        key: The template's own key, passed to ` find`.
        source: Its Jinja source.
        origins: Its number in a source map: each line and each expression that prints then carries its origin. None
            without a source map.
    """

    def __init__(self, key: str, source: str, origins: int | None) -> None:
        self._key = key
        self._lines = source.split("\n")
        self._origins = origins
        self._blocks: list[str] = []  # around the current node
        self._block_numbers: dict[str, int] = {}
        self.outline = Outline()

    def generic_visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, nodes.If | nodes.For):  # around these one knows what follows
            self._end_includes(body, [])
        return node

    def _end_includes(self, body: list[nodes.Node], following: list[nodes.Node]) -> None:
        """Keep an include that is alone on its line from swallowing the line after it: Jinja removes the last newline
        of the included file and the one after the statement. What may print after the body is `following`."""
        for number in range(len(body) - 1, -1, -1):
            node = body[number]
            swallows = not all(map(_begins_line, following))
            if isinstance(node, nodes.If):
                self._end_includes(node.body, following)
                self._end_includes(node.else_, following)
                for other in node.elif_:
                    self._end_includes([other], following)
            elif isinstance(node, nodes.For):
                first = [inner for inner in node.body if not isinstance(inner, _SILENT)][:1]  # of the next turn
                self._end_includes(node.body, [*following, *first])
                self._end_includes(node.else_, following)
            elif (
                swallows
                and isinstance(node, nodes.Include)
                and node.with_context
                and _TAG.fullmatch(self._lines[node.lineno - 1])
            ):
                ended = _filter("line", nodes.Const(None, lineno=node.lineno), [])
                ended.node = None
                body[number] = nodes.FilterBlock([node], ended, lineno=node.lineno)
            if not isinstance(node, _SILENT):
                following = [node]

    def visit_Template(self, node: nodes.Template) -> nodes.Node:
        body = itertools.dropwhile(lambda inner: not isinstance(inner, nodes.Extends), node.body)
        self.outline.outside = next(self._outside(body), None)
        return self.generic_visit(node)

    def _outside(self, body: Iterable[nodes.Node]) -> Iterator[int]:
        """The lines of what would be printed outside of blocks; comments of YAML say nothing to anybody."""
        for node in body:
            if isinstance(node, nodes.Output):
                for part in node.nodes:
                    texts = part.data.split("\n") if isinstance(part, nodes.TemplateData) else ["{{"]
                    for line, text in enumerate(texts, part.lineno):
                        if text.strip() and not self._lines[line - 1].lstrip().startswith("#"):
                            yield line
            elif not isinstance(node, (*_SILENT, nodes.Block, nodes.CallBlock)):
                yield from self._outside(node.iter_child_nodes())

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        self.outline.blocks[node.name] = node.lineno
        if not self._blocks:
            self.outline.outer_blocks.append(node.name)
        self._block_numbers.setdefault(node.name, len(self._block_numbers) + 1)
        self._blocks.append(node.name)
        self.generic_visit(node)
        self._blocks.pop()
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filter("printed", node.filter, [])
        return node

    def visit_With(self, node: nodes.With) -> list[nodes.Node]:
        self.generic_visit(node)
        here = nodes.ExprStmt(nodes.Const(None, lineno=node.lineno), lineno=node.lineno)
        return [here, node]  # assignments have no line in the generated code

    def visit_Extends(self, node: nodes.Extends | nodes.Import | nodes.FromImport | nodes.Include) -> nodes.Node:
        self.generic_visit(node)
        node.template = self._found(node.template, _USED[type(node)], node.lineno)
        return node

    visit_Import = visit_FromImport = visit_Include = visit_Extends

    def _found(self, name: nodes.Expr, used: str, line: int) -> nodes.Expr:
        return _filter("find", name, [nodes.Const(self._key), nodes.Const(used), nodes.Const(line)])

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, float) and not math.isfinite(node.value):
            raise TemplateSyntaxError("this number is too large for a float", node.lineno)
        if isinstance(node.value, str):
            self.outline.mentioned.add(node.value)
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.ctx == "store":
            self.outline.names.setdefault(node.name, 0)
        else:
            self.outline.mentioned.add(node.name)
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        if isinstance(node.target, nodes.Name):
            self.outline.names[node.target.name] = node.lineno
        return self.generic_visit(node)

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        self.generic_visit(node)
        self.outline.mentioned.add(node.attr)
        if isinstance(node.node, nodes.Name) and node.node.name == "self":
            self.outline.used_blocks.add(node.attr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("concat", nodes.List(node.nodes, lineno=node.lineno), [])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = _filter("haystack", operand.expr, [])
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise TemplateSyntaxError("there is no autoescape here: the text is YAML, not HTML", node.lineno)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        printed: list[nodes.Expr] = []
        for child in node.nodes:
            if isinstance(child, nodes.Const) and isinstance(child.value, str):
                child = nodes.TemplateData(child.value, lineno=child.lineno)
            if isinstance(child, nodes.TemplateData):
                child.data = self._with_origins(child.data, child.lineno)
            elif self._origins is not None:
                child = _filter("at", child, [nodes.Const(self._origin(child.lineno))])
            printed.append(child)
        node.nodes = printed
        return node

    def _with_origins(self, text: str, line: int) -> str:
        if self._origins is None:
            return text
        parts = text.split("\n")
        marked = [self._origin(line + number) + part for number, part in enumerate(parts)]
        return "\n".join(marked if parts[-1] else [*marked[:-1], ""])

    def _origin(self, line: int) -> str:
        block = self._block_numbers[self._blocks[-1]] if self._blocks else 0
        return f"{ORIGIN_OPEN}{self._origins}.{line}.{block}{ORIGIN_CLOSE}"

    @property
    def block_names(self) -> Sequence[str]:
        """Names of the blocks, by the number used in origins; "" for none."""
        return ["", *self._block_numbers]


def _begins_line(node: nodes.Node) -> bool:
    first = node.nodes[0] if isinstance(node, nodes.Output) else None
    return isinstance(first, nodes.TemplateData) and _NEWLINE_FIRST.match(first.data) is not None


def _filter(name: str, value: nodes.Expr, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, f" {name}", args, [], None, None, lineno=value.lineno)
