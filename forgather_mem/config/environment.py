"""How does a person load templates, look at them, and build what they describe?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.config.budgets import Budgets
from forgather_mem.config.construct import Construction, misfits
from forgather_mem.config.nodes import NO_DEFAULT, CallNode, Graph, Paths, Value, VarNode
from forgather_mem.config.parse import parse
from forgather_mem.config.places import STRING, Place
from forgather_mem.config.plain import as_plain
from forgather_mem.config.policy import NameUse, Policy
from forgather_mem.config.rendered import Rendered
from forgather_mem.config.resolve import Resolver
from forgather_mem.config.search import Found, Searcher
from forgather_mem.errors import TemplateError, did_you_mean

if TYPE_CHECKING:
    from forgather_mem.config.render import Renderer

OWN_VARIABLE = "pp_config"
"""The variable that every construction has: the text of the template, for loggers that record it."""


class ConfigEnvironment:
    """Where templates are looked for, and what they may name.

    Args:
        searchpath: Folders of templates, the first that has a name wins; also one folder. The templates of this
            library are searched last.
        global_vars: Variables that every template sees.
        allow: What templates may import besides the default: a package ("my_module"), or one name
            ("my_module.x:Class").
        allow_files: Python files that templates may use, or folders of them.
        policy: A policy instead of `allow` and `allow_files`; `Policy.UNSAFE_ANY` allows everything.
        budgets: Larger limits, for very large templates.

    >>> env = ConfigEnvironment()
    >>> config = env.load_from_string("delays: [!singleton:datetime:timedelta {hours: {{ hours }}}]", hours=3)
    >>> config.targets, config["delays"]
    (('delays',), [datetime.timedelta(seconds=10800)])
    """

    def __init__(
        self,
        searchpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (".",),
        *,
        global_vars: Mapping[str, object] | None = None,
        allow: Sequence[str] = (),
        allow_files: Sequence[str | Path] = (),
        policy: Policy | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        if policy is not None and (allow or allow_files):
            raise ValueError("give allow and allow_files, or a policy; not both")
        self.policy = policy or Policy.of_person(allow, allow_files)
        self._budgets = budgets or Budgets()
        folders = searchpath if isinstance(searchpath, str | os.PathLike) else tuple(searchpath)
        self._searcher = Searcher(folders, self._budgets)
        self._global_vars = global_vars or {}
        self._plain: dict[str, tuple[Found, Rendered]] = {}

    def load(self, name: str | os.PathLike[str], /, **variables: object) -> Config:
        """Render and parse a template. Nothing is imported or built.

        Args:
            name: Of the template, relative to a folder of the search path.
            variables: What the template sees as Jinja variables: numbers, text, lists and mappings of these.

        Raises:
            TemplateError: for everything that is wrong with the template.
        """
        return self._config(self.render(name, **variables))

    def load_from_string(self, text: str, /, **variables: object) -> Config:
        """As `load`, for a template given as text.

        Raises:
            TemplateError: for everything that is wrong with the template.
        """
        return self._config(self._render_string(text, variables))

    def preprocess(self, name: str | os.PathLike[str], /, **variables: object) -> str:
        """The text that a template renders to.

        Raises:
            TemplateError: for everything that is wrong with it up to there.
        """
        return self.render(name, **variables).shown

    def preprocess_from_string(self, text: str, /, **variables: object) -> str:
        """As `preprocess`, for a template given as text.

        Raises:
            TemplateError: for everything that is wrong with it up to there.
        """
        return self._render_string(text, variables).shown

    def render(self, name: str | os.PathLike[str], /, **variables: object) -> Rendered:
        """The text that a template renders to, with the origin of each line.

        Raises:
            TemplateError: for everything that is wrong with it up to there.
        """
        plain = None if variables or self._global_vars else self._as_plain(os.fspath(name))
        return plain or self._renderer.render(name, variables)

    def find_referenced_templates(
        self, name: str | os.PathLike[str], /, **variables: object
    ) -> list[tuple[int, str, str]]:
        """The templates that a template uses: level (0 is itself), name and file of each.

        Raises:
            TemplateError: when the template itself can't be read.
        """
        references = self._renderer.referenced(name, variables)
        return [(reference.level, reference.name, str(reference.file)) for reference in references]

    @cached_property
    def _renderer(self) -> Renderer:
        from forgather_mem.config.render import Renderer  # with Jinja, half of the time of a small load

        return Renderer(self._searcher, self._budgets, self._global_vars, paste_values=self.policy.is_unsafe)

    def _render_string(self, text: str, variables: Mapping[str, object]) -> Rendered:
        is_small = len(text) <= min(self._budgets.source_bytes, self._budgets.rendered_bytes)
        plain = as_plain(text, STRING) if is_small and not variables and not self._global_vars else None
        return plain or self._renderer.render_string(text, variables)

    def _as_plain(self, name: str) -> Rendered | None:
        """A template without anything to render, kept until its file changes."""
        found = self._searcher.find(name)
        if found is None:
            return None  # the renderer says so
        known = self._plain.get(name)
        if known is not None and known[0] == found:
            return known[1]
        rendered = as_plain(self._searcher.read(found), found.name)
        if rendered is not None and len(rendered.text) > self._budgets.rendered_bytes:
            return None  # the renderer says so
        if rendered is not None:
            self._plain[name] = (found, rendered)
        return rendered

    def _config(self, rendered: Rendered) -> Config:
        return Config(rendered, parse(rendered, self._budgets), self.policy, self._budgets, self._folder_of)

    def _folder_of(self, name: str) -> str | None:
        try:
            found = self._searcher.find(name)
        except TemplateError:  # "<string>", or a file that is gone
            return None
        return str(found.file.parent) if found else None


@dataclass(frozen=True, slots=True)
class VariableUse:
    """A `!var` in a template.

    Attributes:
        name: Of the variable.
        place: Where it stands.
        path: Where in the graph, as `$.trainer_callbacks.gc`.
        has_default: It need not be given.
    """

    name: str
    place: Place
    path: str
    has_default: bool


class Config:
    """A loaded template: its text, its graph, and the objects it describes.

    `config[target]` builds a target once, and what it shares with other targets asked for in this way is shared.
    The config keeps these objects; `construct` always builds new ones and keeps none.
    """

    def __init__(
        self,
        rendered: Rendered,
        graph: Graph,
        policy: Policy,
        budgets: Budgets | None = None,
        folder_of: Callable[[str], str | None] | None = None,
    ) -> None:
        self.rendered = rendered
        self.graph = graph
        self._policy = policy
        self._budgets = budgets
        self._folder_of = folder_of

    @cached_property
    def text(self) -> str:
        """The rendered text."""
        return self.rendered.shown

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of what can be built."""
        return self.graph.targets

    def construct(
        self, targets: str | Iterable[str] | None = None, /, *, context_vars: Mapping[str, object] | None = None
    ) -> Any:
        """Build what the template describes, anew each time.

        Args:
            targets: One target; several, which gives a dict; None for the whole document.
            context_vars: Values for `!var`, any objects. `pp_config`, the text, is always there.

        Raises:
            TemplateError: for an unknown target, an unbound variable, a refused name, arguments that don't fit, and
                what a constructor raises, which is then the cause. All but the last before anything is built.
        """
        construction = self._construction(context_vars or {})
        if targets is None:
            return construction.build([self.graph.root])[0]
        if isinstance(targets, str):
            return construction.build([self._target(targets)])[0]
        names = list(targets)
        return dict(zip(names, construction.build([self._target(name) for name in names]), strict=True))

    def __getitem__(self, target: str) -> Any:
        return self._shared.build([self._target(target)])[0]

    def __contains__(self, target: object) -> bool:
        return target in self.targets

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"<Config {self.rendered.name}: {', '.join(self.targets)}>"

    def names(self, targets: Iterable[str] | None = None) -> list[NameUse]:
        """The names that targets would import, each where it stands first."""
        resolver = self._resolver({})
        nodes = resolver.reached(self._roots(targets))
        return resolver.uses(node for node in nodes if isinstance(node, CallNode))

    def variables(self, targets: Iterable[str] | None = None) -> list[VariableUse]:
        """The variables that targets use, each place of them."""
        paths = Paths(self.graph)
        return [
            VariableUse(
                node.variable, self.graph.place(node.mark), paths.of(node) or "", node.default is not NO_DEFAULT
            )
            for node in self._resolver({}).reached(self._roots(targets))
            if isinstance(node, VarNode)
        ]

    def misfits(self, targets: Iterable[str] | None = None) -> list[TemplateError]:
        """Allowed names that don't import, and arguments that don't fit them. It imports these, and builds nothing."""
        return misfits(self._resolver({}), self._roots(targets))

    @cached_property
    def _shared(self) -> Construction:
        return self._construction({})

    def _construction(self, context_vars: Mapping[str, object]) -> Construction:
        return Construction(self._resolver(context_vars))

    def _resolver(self, context_vars: Mapping[str, object]) -> Resolver:
        variables = {OWN_VARIABLE: self.text, **context_vars}
        return Resolver(self.graph, self._policy, variables, budgets=self._budgets, folder_of=self._folder_of)

    def _roots(self, targets: Iterable[str] | None) -> list[Value]:
        return [self.graph.root] if targets is None else [self._target(name) for name in targets]

    def _target(self, name: str) -> Value:
        if name in self.targets:
            return self.graph.target(name)
        message = f"there is no target {name!r}"
        hint = did_you_mean(name, self.targets)
        if not hint and self.targets:
            hint = f"the targets are {', '.join(self.targets[:20])}"
        elif not hint:
            hint = "this template has no targets: construct() builds the whole document"
        raise TemplateError(message, template=self.rendered.name, hint=hint)
