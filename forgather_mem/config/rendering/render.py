"""Renders templates to text, with the origin of each line."""

from __future__ import annotations

import datetime
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.rendering.compiler import Compiler, Job, LimitPassed, Load
from forgather_mem.config.rendering.error_text import explain
from forgather_mem.config.rendering.instrument import Outline
from forgather_mem.config.rendering.source_map import MAP_LIMITS, SourceMap, Tracer, source_map
from forgather_mem.config.rendering.taint import TaintTokens, untaint
from forgather_mem.config.rendering.variables import wrap
from forgather_mem.config.source.loader import Source, Sources, StrangersTemplate
from forgather_mem.config.source.location import STRING
from forgather_mem.config.source.rendered import Reference, Rendered
from forgather_mem.config.source.search import Searcher
from forgather_mem.config.source.tokens import ORIGIN
from forgather_mem.errors import TemplateError, nearest, ours

_MISSPELT = 0.8  # measured on Forgather's templates: leftovers are below 0.72, a changed or lost letter above 0.85


class Renderer:
    """Renders templates and caches their compiled form until a file changes. Thread-safe: renders run one at a time.

    What a template may reach is limited, what it computes is not: a stranger's belongs into a process with limits
    (stranger.py).

    Args:
        searcher: Finds the files.
        budgets: The limits of one render.
        global_vars: Variables that every template sees, imported ones too.
        paste_values: Paste values from outside into the text, as Forgather does, instead of keeping them apart: they
            can then be YAML and tags. Only for values from people who may run code.
        is_own: Whether a file may be rendered here.
        marks: The strings from outside.
        read: Told how many characters each template has.
    """

    def __init__(
        self,
        searcher: Searcher,
        budgets: Limits | None = None,
        global_vars: Mapping[str, object] | None = None,
        paste_values: bool = False,
        is_own: Callable[[Path], bool] = lambda file: True,
        marks: TaintTokens | None = None,
        read: Callable[[int], None] = lambda num_chars: None,
    ) -> None:
        self._budgets = budgets or DEFAULT_LIMITS
        self._sources = Sources(searcher, self._budgets, is_own)
        self._paste_values = paste_values
        self._marks = marks or TaintTokens()
        self._global_vars = global_vars or {}
        self._compiler = Compiler(self._marks, paste_values=paste_values)
        self._read = read
        self._lock = threading.RLock()

    def render(
        self,
        name: str | os.PathLike[str],
        variables: Mapping[str, object] | None = None,
        moment: datetime.datetime | None = None,
    ) -> Rendered:
        """Render a template by its name.

        Args:
            name: Of the template.
            variables: Its variables.
            moment: What time it is.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        return self._render(self._source(os.fspath(name)), variables or {}, moment)

    def render_string(
        self, text: str, variables: Mapping[str, object] | None = None, moment: datetime.datetime | None = None
    ) -> Rendered:
        """Render a template given as text.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        if len(text) > self._budgets.source_bytes:
            limit = f"{self._budgets.source_bytes:,}"
            raise TemplateError(f"the template has more than {limit} characters", template=STRING)
        source = self._sources.from_text(text)
        try:
            return self._render(source, variables or {}, moment)
        finally:
            self._compiler.forget(source)

    def references(
        self, name: str | os.PathLike[str], variables: Mapping[str, object] | None = None
    ) -> tuple[list[Reference], TemplateError | None]:
        """The templates that a template uses: level, name and file of each, itself first; and what stopped the render.

        They are found by rendering it; if that fails, they are those loaded until then.
        """
        failure = None
        with self._lock:
            source = self._source(os.fspath(name))
            self._marks.reset()
            job = Job(self._sources, self._budgets, self._read)
            try:
                self._run(self._compiler, job, source, self._wrapped(variables or {}))
                if job.parents:
                    _unknown_blocks(self._compiler)
            except TemplateError as error:
                failure = error
        return referenced(job.loads), failure

    def _source(self, name: str) -> Source:
        source = self._sources.load(name)
        if source is None:
            raise self._sources.searcher.not_found(name)
        return source

    def _render(self, source: Source, variables: Mapping[str, object], moment: datetime.datetime | None) -> Rendered:
        with self._lock:
            self._marks.reset()
            wrapped = self._wrapped(variables)
            job = Job(self._sources, self._budgets, self._read)
            job.moment = moment or job.moment
            text, values = self._run(self._compiler, job, source, wrapped)
            unknown: tuple[TemplateError, ...] = _unknown_blocks(self._compiler) if job.parents else ()
            parent = job.parents.get(source.key)
            outlines = [self._compiler.outline(load.source) for load in job.first.values()]
            mentioned = frozenset().union(*(outline.mentioned for outline in outlines))
            unknown += tuple(_unread(source, self._compiler.outline(source), mentioned))
        locate = Tracer(lambda: self._trace(job, source, wrapped, text, values), source.place(1))
        return Rendered(
            name=source.name,
            text=text,
            values=values,
            locate=locate,
            unknown_blocks=unknown,
            parent=parent.name if parent is not None else None,
            mentioned=mentioned,
            num_chars=job.source_chars,
        )

    def _run(
        self, compiler: Compiler, job: Job, source: Source, wrapped: dict[str, object]
    ) -> tuple[str, dict[str, str]]:
        """Render: the text, and the values in it."""
        compiler.begin(job, wrapped)
        compiler.globals.update(self._wrapped(self._global_vars))
        try:
            template = compiler.main(source).template
            text = "".join(template.root_render_func(template.new_context(wrapped)))
            if len(text) > job.budgets.rendered_bytes:
                raise LimitPassed(f"the rendered text has more than {job.budgets.rendered_bytes:,} characters")
            if text.count("\n") > job.budgets.nodes:
                raise LimitPassed(f"the rendered text has more than {job.budgets.nodes:,} lines")
            text = self._marks.in_tags(text)
            if not text.isascii():
                text.encode()  # Jinja strings can hold lone surrogates, YAML can't
            return text, self._marks.used(ORIGIN.sub("", text) if compiler.origins else text)
        except (TemplateError, StrangersTemplate):
            raise
        except ours(Exception) as error:
            raise explain(error, compiler) from error

    def _trace(
        self, job: Job, source: Source, wrapped: dict[str, object], text: str, values: Mapping[str, str]
    ) -> SourceMap | None:
        """The source map; None for a text that is too long for one."""
        if len(text) > MAP_LIMITS.text:
            return None
        budgets = replace(self._budgets, rendered_bytes=8 * MAP_LIMITS.text)
        again = Job(self._sources, budgets, moment=job.moment, resolved=dict(job.resolved))
        with self._lock:
            self._marks.reset()
            compiler = Compiler(self._marks, paste_values=self._paste_values, origins=True)
            try:
                marked = self._run(compiler, again, source, self._wrapped(untaint(wrapped)))
            except TemplateError:
                return None
        return source_map(text, values, *marked, compiler.numbered, again)

    def _wrapped(self, variables: Mapping[str, object]) -> dict[str, object]:
        return dict(variables) if self._paste_values else wrap(variables, self._marks.mark, self._budgets)


def _unread(source: Source, outline: Outline, mentioned: frozenset[str]) -> Iterator[TemplateError]:
    """The variables that a template sets, that no expression reads, and that have nearly the name of one that is."""
    for name, line in outline.names.items():
        if line and name not in mentioned and (near := nearest(name, mentioned, _MISSPELT)):
            yield source.place(line).error(f"no template uses the variable {name!r}", hint=f"did you mean {near!r}?")


def _unknown_blocks(compiler: Compiler) -> tuple[TemplateError, ...]:
    """The blocks of the render in progress that no parent has and that nothing prints with `self.name()`.

    Jinja silently drops such a block, so a misspelt name has no effect. A name close to one of the parents' names is
    therefore an error; any other is only reported (templates in the wild have such leftovers).

    Raises:
        TemplateError: for the first of them that looks misspelt, or for a line outside of all blocks.
    """
    job = compiler.job
    used = {name for load in job.loads for name in compiler.outline(load.source).used_blocks}
    unknown = []
    for key, parent in job.parents.items():
        child = job.first[key].source
        known: set[str] = set()
        at: Source | None = parent
        while at is not None:
            known.update(compiler.outline(at).blocks)
            at = job.parents.get(at.key)
        outline = compiler.outline(child)
        chain = ", ".join(job.chain(key)) or None
        if outline.outside is not None:
            place = child.place(outline.outside, chain=chain)
            meant = re.fullmatch(r"\[(\w+)!*\]?:?|(\w+)!*\]:?", (place.source_line or "").strip())
            blocks = f"write it in one of the blocks: {', '.join(sorted(known)[:20])}"
            hint = f"did you mean '[{meant[1] or meant[2]}]'?" if meant else blocks
            raise place.error("this line stands outside of every block and is never rendered", hint=hint)
        for name in outline.outer_blocks:
            if name in known or name in used:
                continue
            near = nearest(name, known, _MISSPELT)
            error = child.place(outline.blocks[name], chain=chain).error(
                f"no template that {child.name} extends has a block {name!r}, so it is not rendered",
                hint=f"did you mean {near!r}?" if near else f"the blocks are: {', '.join(sorted(known)[:20])}",
            )
            if near:
                raise error
            unknown.append(error)
    return tuple(unknown)


def referenced(loads: Sequence[Load]) -> list[Reference]:
    """The templates of a render as a tree in preorder, each once, at its first use; sorted by name within a level."""
    users: dict[str, list[Load]] = {}
    seen = {loads[0].source.key} if loads else set()
    for load in loads[1:]:
        assert load.by is not None
        if load.source.key not in seen:
            seen.add(load.source.key)
            users.setdefault(load.by.key, []).append(load)
    return list(_tree(loads[0], 0, users)) if loads else []


def _tree(load: Load, level: int, users: Mapping[str, Sequence[Load]]) -> Iterator[Reference]:
    source = load.source
    yield level, source.name, str(source.file or "")
    for child in sorted(users.get(source.key, ()), key=lambda used: used.source.name):
        yield from _tree(child, level + 1, users)
