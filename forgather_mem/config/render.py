"""What text does a template give, and where does each line of it come from?"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from forgather_mem.config.blocks import unknown_blocks
from forgather_mem.config.budgets import Budgets
from forgather_mem.config.compiler import Compiler, Job
from forgather_mem.config.failures import explain
from forgather_mem.config.marked import unmarked
from forgather_mem.config.marks import Marks
from forgather_mem.config.meter import TooMuch
from forgather_mem.config.origins import Origins
from forgather_mem.config.outside import wrap
from forgather_mem.config.places import STRING, Place
from forgather_mem.config.references import Reference, referenced
from forgather_mem.config.rendered import Rendered
from forgather_mem.config.search import Searcher
from forgather_mem.config.sources import Source, Sources
from forgather_mem.config.tokens import ORIGIN
from forgather_mem.errors import TemplateError

_log = logging.getLogger(__name__)
_MAX_STRINGS = 64
_MAX_TRACED = 1_000_000  # characters; a longer text has no source map


class Renderer:
    """Renders templates, and keeps what it compiled until a file changes. Safe to use from several threads,
    one at a time.

    Args:
        searcher: Finds the files.
        budgets: How much one render may take.
        global_vars: Variables that every template sees, imported ones too.
        paste_values: Paste values from outside into the text, as Forgather does, instead of keeping them
            apart: then they can be YAML and tags. Only for values from people who may run code.
    """

    def __init__(
        self,
        searcher: Searcher,
        budgets: Budgets | None = None,
        global_vars: Mapping[str, Any] | None = None,
        paste_values: bool = False,
    ) -> None:
        self._budgets = budgets or Budgets()
        self._sources = Sources(searcher, self._budgets)
        self._paste_values = paste_values
        self._marks = Marks()
        self._global_vars = self._wrapped(global_vars or {})
        self._marks.keep()
        self._compiler = self._new_compiler(origins=False)
        self._strings: dict[str, Source] = {}
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def render(self, name: str | os.PathLike[str], variables: Mapping[str, Any] | None = None) -> Rendered:
        """Render a template by its name.

        Raises:
            TemplateError: for everything that can be wrong with it.
        """
        return self._render(self._source(os.fspath(name)), variables or {})

    def render_string(self, text: str, variables: Mapping[str, Any] | None = None) -> Rendered:
        """Render a template that is given as text.

        Raises:
            TemplateError: for everything that can be wrong with it.
        """
        return self._render(self._string(text), variables or {})

    def referenced(self, name: str | os.PathLike[str], variables: Mapping[str, Any] | None = None) -> list[Reference]:
        """The templates that a template uses: level, name and file of each, itself first.

        Those that it loads are found by rendering it; when that fails, those until then and those that their
        text names.
        """
        with self._lock:
            source = self._source(os.fspath(name))
            self._marks.reset()
            job = Job(self._sources, self._budgets)
            try:
                self._run(self._compiler, job, source, self._wrapped(variables or {}))
            except TemplateError:
                self._compiler.load_named()
        return referenced(job.loads)

    def _source(self, name: str) -> Source:
        source = self._sources.load(name)
        if source is None:
            raise TemplateError(f"template {name!r} not found", hint=self._sources.searcher.hint(name))
        return source

    def _string(self, text: str) -> Source:
        known = self._strings.get(text)
        if known is None:
            if len(text) > self._budgets.source_bytes:
                raise TemplateError(
                    f"the template has more than {self._budgets.source_bytes:,} characters", template=STRING
                )
            if len(self._strings) >= _MAX_STRINGS:
                self._compiler.forget(self._strings.pop(next(iter(self._strings))))
            known = self._strings[text] = self._sources.from_text(text)
        return known

    def _render(self, source: Source, variables: Mapping[str, Any]) -> Rendered:
        with self._lock:
            self._marks.reset()
            wrapped = self._wrapped(variables)
            job = Job(self._sources, self._budgets)
            text, values = self._run(self._compiler, job, source, wrapped)
            unknown = unknown_blocks(self._compiler) if job.parents else ()
        for error in unknown:
            self._warn_once(error)
        origins: list[Origins | None] = []

        def locate(line: int, column: int) -> Place:
            if not origins:
                origins.append(self._trace(job, source, wrapped, text, values))
            place = origins[0].place(line, column) if origins[0] else None
            return place or source.place(1)

        return Rendered(name=source.name, text=text, values=values, locate=locate, unknown_blocks=unknown)

    def _warn_once(self, error: TemplateError) -> None:
        place = f"{error.template}:{error.line}: {error.message}"
        if place not in self._warned:
            self._warned.add(place)
            _log.warning("%s; %s", place, error.hint)

    def _run(self, compiler: Compiler, job: Job, source: Source, wrapped: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """Render: the text, and the values that stand in it."""
        compiler.begin(job, wrapped)
        try:
            template = compiler.main(source).template
            text = _joined(template.root_render_func(template.new_context(wrapped)), job.budgets.rendered_bytes)
            text = self._marks.in_tags(text)
            if not text.isascii():
                text.encode()  # Jinja strings can hold half characters, YAML can't
            return text, self._marks.used(ORIGIN.sub("", text) if compiler.origins else text)
        except TemplateError:
            raise
        except Exception as error:
            raise explain(error, compiler) from error

    def _trace(
        self, job: Job, source: Source, wrapped: dict[str, Any], text: str, values: Mapping[str, str]
    ) -> Origins | None:
        """The source map, None for a text that is too long for one."""
        if len(text) > _MAX_TRACED:
            return None
        budgets = replace(self._budgets, rendered_bytes=8 * _MAX_TRACED, made_bytes=2 * self._budgets.made_bytes)
        again = Job(self._sources, budgets, clock=job.clock, resolved=dict(job.resolved))
        with self._lock:
            self._marks.reset()
            compiler = self._new_compiler(origins=True)
            try:
                marked = self._run(compiler, again, source, self._wrapped(unmarked(wrapped)))
            except TemplateError:
                return None
        origins = Origins(text, values, *marked, compiler.numbered, again)
        return origins if origins.is_exact else None

    def _wrapped(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return dict(variables) if self._paste_values else wrap(variables, self._marks, self._budgets)

    def _new_compiler(self, *, origins: bool) -> Compiler:
        compiler = Compiler(self._marks, paste_values=self._paste_values, origins=origins)
        compiler.globals.update(self._global_vars)
        return compiler


def _joined(pieces: Iterable[str], limit: int) -> str:
    length = 0
    kept = []
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        if length > limit:
            raise TooMuch(f"the rendered text has more than {limit:,} characters")
    return "".join(kept)
