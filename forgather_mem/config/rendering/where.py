"""Where a template is rendered: one's own in this process, a stranger's in one of its own.

One's own are the templates of the library, those in files and folders that the person has allowed, and, under
`Policy.UNSAFE_ANY`, all. A load that uses any other template, or a text, is a stranger's as a whole.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.rendering.variables import wrap
from forgather_mem.config.source.loader import StrangersTemplate
from forgather_mem.config.source.location import STRING
from forgather_mem.config.source.rendered import Reference, Rendered
from forgather_mem.config.source.search import Searcher, library
from forgather_mem.errors import TemplateError

if TYPE_CHECKING:
    from forgather_mem.config.rendering.render import Renderer
    from forgather_mem.config.rendering.stranger import Request

_log = logging.getLogger(__name__)
_Made = TypeVar("_Made")


class Rendering:
    """Renders the templates of an environment.

    Args:
        searcher: Finds the files.
        budgets: The limits of one load.
        global_vars: Variables that every template sees.
        policy: Says what is the person's own.
    """

    def __init__(self, searcher: Searcher, budgets: Limits, global_vars: Mapping[str, object], policy: Policy) -> None:
        self._searcher = searcher
        self._budgets = budgets
        self._global_vars = global_vars
        self._policy = policy
        self._warned: set[str] = set()

    def render(self, name: str, variables: Mapping[str, object]) -> Rendered:
        """Render a template by its name.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        rendered = self._own(name, lambda renderer: renderer.render(name, variables))
        return self._reported(rendered or self._strangers(name, variables))

    def render_string(self, text: str, variables: Mapping[str, object]) -> Rendered:
        """Render a template given as text.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        if self._policy.is_unsafe:
            return self._reported(self._renderer.render_string(text, variables))
        return self._reported(self._strangers(STRING, variables, text))

    def references(self, name: str, variables: Mapping[str, object]) -> tuple[list[Reference], TemplateError | None]:
        """The templates that a template uses, and what stopped the render.

        Raises:
            TemplateError: when the template itself can't be read.
        """
        own = self._own(name, lambda renderer: renderer.references(name, variables))
        if own is not None:
            return own
        from forgather_mem.config.rendering.stranger import references

        return references(self.request(name, variables))

    def _own(self, name: str, render: Callable[[Renderer], _Made]) -> _Made | None:
        """What the renderer of this process makes of a template; None if it, or one that it uses, is a stranger's."""
        found = self._searcher.find(name)
        if found is None:
            raise self._searcher.not_found(name)
        try:
            return render(self._renderer) if self._is_own(found.file) else None
        except StrangersTemplate:
            return None

    def _is_own(self, file: Path) -> bool:
        return self._policy.owns(file) or os.path.realpath(file).startswith(os.path.join(library(), ""))

    @cached_property
    def _renderer(self) -> Renderer:
        from forgather_mem.config.rendering.render import Renderer  # imports Jinja: half the time of a small load

        is_unsafe = self._policy.is_unsafe
        return Renderer(self._searcher, self._budgets, self._global_vars, is_unsafe, self._is_own)

    def _strangers(self, name: str, variables: Mapping[str, object], text: str | None = None) -> Rendered:
        from forgather_mem.config.rendering.stranger import render

        return render(self.request(name, variables, text))

    def request(self, name: str, variables: Mapping[str, object], text: str | None = None) -> Request:
        """What a process is asked for that renders a stranger's template.

        Raises:
            TemplateError: if a variable is no plain data.
        """
        from forgather_mem.config.rendering.stranger import Request

        return Request(
            name=name,
            text=text,
            folders=tuple(map(str, self._searcher.folders[:-1])),
            budgets=self._budgets,
            global_vars=wrap(self._global_vars, str, self._budgets),
            variables=wrap(variables, str, self._budgets),
            secret=os.urandom(12).hex(),
            moment=datetime.datetime.now(datetime.UTC),
        )

    def _reported(self, rendered: Rendered) -> Rendered:
        """A rendered template, its unknown blocks named once."""
        for error in rendered.unknown_blocks:
            place = f"{error.template}:{error.line}: {error.message}"
            if place not in self._warned:
                self._warned.add(place)
                _log.warning("%s; %s", place, error.hint)
        return rendered
