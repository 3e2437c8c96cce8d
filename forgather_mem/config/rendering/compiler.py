"""Finds the templates that a render loads and compiles each of them once.

A sub-template takes precedence over a file of the same name. It is visible in the file that defines it, in what that
file extends, includes or imports in the same render, directly or indirectly, and in the files that extend it. None of
this carries over to the next render.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jinja2 import Template, TemplateNotFound, Undefined, nodes
from jinja2.environment import Template as CompiledTemplate
from jinja2.exceptions import TemplateRuntimeError, TemplateSyntaxError
from jinja2.visitor import NodeTransformer

from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.sandbox import Sandbox
from forgather_mem.config.rendering.taint import TaintTokens, text_of
from forgather_mem.config.source.loader import Source, Sources
from forgather_mem.config.source.rendered import ORIGIN_CLOSE, ORIGIN_OPEN
from forgather_mem.errors import TemplateError

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
        self._blocks = [0]  # around the current node, numbered from 1 as in origins; 0 for none
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
        if self._blocks == [0]:
            self.outline.outer_blocks.append(node.name)
        self._blocks.append(len(self.outline.blocks))
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
        where: list[nodes.Expr] = [nodes.Const(self._key), nodes.Const(_USED[type(node)]), nodes.Const(node.lineno)]
        node.template = _filter("find", node.template, where)
        return node

    visit_Import = visit_FromImport = visit_Include = visit_Extends

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
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
        return f"{ORIGIN_OPEN}{self._origins}.{line}.{self._blocks[-1]}{ORIGIN_CLOSE}"


def _begins_line(node: nodes.Node) -> bool:
    first = node.nodes[0] if isinstance(node, nodes.Output) else None
    return isinstance(first, nodes.TemplateData) and _NEWLINE_FIRST.match(first.data) is not None


def _filter(name: str, value: nodes.Expr, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, f" {name}", args, [], None, None, lineno=value.lineno)


class LimitPassed(TemplateRuntimeError):
    """A render has passed one of its limits."""


class Missing(TemplateNotFound):
    """A template that does not exist; `ignore missing` and lists of names continue.

    Attributes:
        explain: Makes the error to raise when nothing handles this one.
    """

    def __init__(self, name: str, explain: Callable[[], TemplateError]) -> None:
        super().__init__(name)
        self.explain = explain


@dataclass(frozen=True, slots=True)
class Load:
    """One use of a template by another.

    Attributes:
        source: The template.
        used: "extended", "included" or "imported"; "" for the requested template.
        by: The template that uses it; None for the requested one.
        line: Line of `by`.
    """

    source: Source
    used: str = ""
    by: Source | None = None
    line: int = 0


@dataclass(slots=True)
class Job:
    """One render in progress, and what it has loaded.

    Attributes:
        sources: Where templates come from.
        budgets: The limits.
        read: Told how many characters each template has.
        moment: The time that its functions see.
        loads: Every use of a template, in order.
        first: The first use of each template, by key.
        parents: Maps a template's key to the source that it extends.
        users, extended: By file name, the templates that use one of that file, and those that one of that file extends.
        part_names: Names of all sub-templates of the files.
        compiling: The template being compiled.
    """

    sources: Sources
    budgets: Limits
    moment: datetime.datetime
    read: Callable[[int], None] = lambda num_chars: None
    loads: list[Load] = field(default_factory=list)
    first: dict[str, Load] = field(default_factory=dict)
    parents: dict[str, Source] = field(default_factory=dict)
    users: dict[str, dict[Source, None]] = field(default_factory=dict)
    extended: dict[str, dict[Source, None]] = field(default_factory=dict)
    part_names: dict[str, None] = field(default_factory=dict)
    compiling: Source | None = None
    source_chars: int = 0

    def use(self, load: Load) -> None:
        """Record a use of a template."""
        self.loads.append(load)
        if len(self.loads) > self.budgets.includes:
            raise LimitPassed(f"this render loads more than {self.budgets.includes:,} templates, each time counted")
        if load.source.key not in self.first:
            self.first[load.source.key] = load
            self.part_names.update(dict.fromkeys(load.source.parts))
            self.source_chars += load.source.num_chars
            self.read(load.source.num_chars)
            if self.source_chars > self.budgets.source_bytes:
                raise LimitPassed(f"the templates of this load have more than {self.budgets.source_bytes:,} characters")
        if load.by is not None:
            self.users.setdefault(load.source.file_name, {})[load.by] = None
        if load.used == "extended" and load.by is not None:
            self.extended.setdefault(load.by.file_name, {})[load.source] = None
            self.parents[load.by.key] = load.source
            names = [load.by.name]
            for source in self.ancestors(load.by.key):
                names.append(source.name)
                if source.key == load.by.key:
                    raise TemplateRuntimeError(f"a template extends itself: {' -> '.join(names)}")

    def chain(self, key: str) -> list[str]:
        """How a template was reached from the requested one."""
        steps: list[str] = []
        load = self.first.get(key)
        while load is not None and load.by is not None:
            steps.append(f"{load.used} by {load.by.file_name}:{load.by.first_line + load.line - 1}")
            load = self.first.get(load.by.key)
        return steps if len(steps) < 9 else [*steps[:4], f"... {len(steps) - 5} more ...", steps[-1]]

    def part(self, name: str, by: Source) -> Source | None:
        """The sub-template that a name refers to in a file: its own, else one of the files that use it, else one of
        those that it extends."""
        if name not in self.part_names:
            return None
        for next_of in (self.users, self.extended):
            reached = {by}
            todo = [by]
            for source in todo:
                if name in source.parts:
                    return source.parts[name]
                new = [other for other in next_of.get(source.file_name, ()) if other not in reached]
                todo += new
                reached.update(new)
        return None

    def ancestors(self, key: str) -> Iterator[Source]:
        """What a template extends, what that extends, and so on."""
        while parent := self.parents.get(key):
            yield parent
            key = parent.key


@dataclass(slots=True)
class Compiled:
    """A compiled template."""

    source: Source
    template: CompiledTemplate
    outline: Outline


class Compiler(Sandbox):
    """The Jinja environment of a `Renderer`. Keeps compiled templates until their source changes.

    Args:
        marks: The strings from outside.
        paste_values: Paste them as Forgather does.
        origins: Compile for a source map: everything printed carries its origin.
    """

    job: Job
    variables: Mapping[str, object]

    def __init__(self, marks: TaintTokens, *, paste_values: bool, origins: bool = False) -> None:
        super().__init__(marks, paste_values=paste_values)
        self.origins = origins
        self._compiled: dict[str, Compiled] = {}
        self.numbered: list[Compiled] = []  # by the number in their origins

    def begin(self, job: Job, variables: Mapping[str, object]) -> None:
        """Make a job the one in progress."""
        self.job = job
        self.variables = variables
        self.moment = job.moment
        for known in self._compiled.values():
            known.template._module = None  # its exports belong to another render

    def outline(self, source: Source) -> Outline:
        """The outline of a template, empty if it could not be compiled."""
        known = self._compiled.get(source.key)
        return known.outline if known is not None else Outline()

    def find(self, name: object, key: str, used: str, line: int) -> str:
        """The key of what a name refers to in the template `key`; for a list, of the first that exists."""
        by = self._compiled[key].source
        if isinstance(name, Undefined):
            str(name)  # raises an error of its own
        names = [text_of(one) for one in (name if isinstance(name, list | tuple) else [name])]
        job = self.job
        for one in names:
            if not isinstance(one, str):
                raise TypeError(f"the name of a template is a string; this is {type(one).__name__}")
            try:
                source = job.part(one, by) or job.sources.load(one)
            except TemplateError as error:
                if error.line is not None:  # in the file itself
                    raise
                raise by.place(line, chain=job.chain(key)).error(error.message, hint=error.hint) from error
            if source is not None:
                job.use(Load(source, used, by, line))
                return source.key
        last = names[-1] if names else ""

        def explain() -> TemplateError:
            hint = job.sources.searcher.hint(last, [*job.part_names]) if names else "an include needs one name at least"
            return by.place(line, chain=job.chain(key)).error(f"template {last!r} not found", hint=hint)

        raise Missing(last, explain)

    def get_template(self, name: object, parent: str | None = None, globals: object = None) -> CompiledTemplate:  # noqa: A002
        """Called by generated code with the result of `find`."""
        return self.compiled(self.job.first[str(name)].source).template

    def compiled(self, source: Source) -> Compiled:
        """A template, compiled if it is new or has changed."""
        known = self._compiled.get(source.key)
        if known is not None and known.source is source:
            return known
        self.job.compiling = source
        number = len(self.numbered) if self.origins else None
        text = source.jinja()
        instrument = Instrument(source.key, text, number)
        tree = instrument.visit(self.parse(text, source.key))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        template = Template.from_code(self, self.compile(tree, source.key), self.globals)
        compiled = self._compiled[source.key] = Compiled(source, template, instrument.outline)
        if self.origins:
            self.numbered.append(compiled)
        self.job.compiling = None
        return compiled
