"""The entry point for templates: load them, inspect them, and build what they describe."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.config.construction.construct import Builder, Construction
from forgather_mem.config.construction.findings import Search
from forgather_mem.config.construction.resolve import MAX_NAMES, OWN_VARIABLE, Resolver
from forgather_mem.config.graph.nodes import CallNode, Graph, Node, Value, VarNode
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.policy.policy import NameUse, Policy
from forgather_mem.config.policy.remote_code import addresses_in
from forgather_mem.config.rendering.variables import wrap
from forgather_mem.config.source.loader import StrangersTemplate
from forgather_mem.config.source.rendered import STRING, Reference, Rendered
from forgather_mem.config.source.search import Searcher, library
from forgather_mem.config.source.syntax import is_plain
from forgather_mem.errors import TemplateError, did_you_mean, missing

if TYPE_CHECKING:
    from forgather_mem.config.rendering.render import Renderer
    from forgather_mem.config.rendering.stranger import Request

_log = logging.getLogger(__name__)


class ConfigEnvironment:
    """The search path of templates, and the policy on what they may name.

    One's own templates are rendered in this process: those of the library, those in files and folders that the person
    has allowed, and, under `Policy.UNSAFE_ANY`, all. A load that uses any other template, or a text, is a stranger's as
    a whole, and is rendered in a process of its own.

    Args:
        searchpath: One or several folders of templates; the first that has a name wins. The templates of this library
            are searched last.
        global_vars: Variables that every template sees.
        allow: What templates may import in addition to the default: a package ("my_module"), or one name
            ("my_module.x:Class"); and what addresses they may hold ("s3://bucket/").
        allow_files: Python files, or folders of them, that templates may use. The templates in such a folder are yours,
            as the library's are: they are rendered in this process, all others in one of their own.
        policy: A policy to use instead of `allow` and `allow_files`; `Policy.UNSAFE_ANY` allows everything.
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
        budgets: Limits | None = None,
    ) -> None:
        if policy is not None and (allow or allow_files):
            raise ValueError("give allow and allow_files, or a policy; not both")
        self.policy = policy or Policy.of_person(allow, allow_files)
        self._budgets = budgets or DEFAULT_LIMITS
        self._searcher = Searcher(searchpath, self._budgets)
        self._global_vars = global_vars or {}
        self._warned: set[str] = set()

    def load(self, name: str | os.PathLike[str], /, **variables: object) -> Config:
        """Render and parse a template. Nothing is imported or built.

        Args:
            name: The template, relative to a folder of the search path.
            variables: Its Jinja variables: numbers, text, lists and mappings of these.

        Raises:
            TemplateError: if anything is wrong with the template.
        """
        return self._config(self.render(name, **variables), variables)

    def load_from_string(self, text: str, /, **variables: object) -> Config:
        """Like `load`, for a template given as text.

        Raises:
            TemplateError: if anything is wrong with the template.
        """
        return self._config(self._render_string(text, variables), variables)

    def preprocess(self, name: str | os.PathLike[str], /, **variables: object) -> str:
        """The text that a template renders to.

        Raises:
            TemplateError: if anything goes wrong up to there.
        """
        return self.render(name, **variables).shown

    def preprocess_from_string(self, text: str, /, **variables: object) -> str:
        """Like `preprocess`, for a template given as text.

        Raises:
            TemplateError: if anything goes wrong up to there.
        """
        return self._render_string(text, variables).shown

    def render(self, name: str | os.PathLike[str], /, **variables: object) -> Rendered:
        """The text that a template renders to, with the origin of each line.

        Raises:
            TemplateError: if anything goes wrong up to there.
        """
        return self._reported(self._rendered(os.fspath(name), variables))

    def find_referenced_templates(self, name: str | os.PathLike[str], /, **variables: object) -> list[Reference]:
        """The templates that a template uses: level (0 is the template itself), name and file of each.

        Raises:
            TemplateError: when the template itself can't be read.
        """
        return self.references(name, **variables)[0]

    def references(
        self, name: str | os.PathLike[str], /, **variables: object
    ) -> tuple[list[Reference], TemplateError | None]:
        """As `find_referenced_templates`, with the error that rendering it ended in: until there they were found.

        Raises:
            TemplateError: when the template itself can't be read.
        """
        try:
            return [*self._rendered(os.fspath(name), variables).references], None
        except TemplateError as error:
            if not error.references:
                raise
            return [(level, name, file) for level, name, file in error.references], error

    def _rendered(self, name: str, variables: Mapping[str, object]) -> Rendered:
        if (found := self._searcher.find(name)) is None:
            raise self._searcher.not_found(name)
        if plain := self._plain(self._searcher.read(found), variables, found.name, str(found.file)):
            return plain
        with contextlib.suppress(StrangersTemplate):  # it uses one
            if self._is_own(found.file):
                return self._renderer.render(name, variables)
        return self._strangers(name, variables)

    def _render_string(self, text: str, variables: Mapping[str, object]) -> Rendered:
        if plain := self._plain(text, variables):
            return plain
        if self.policy.is_unsafe:
            return self._reported(self._renderer.render_string(text, variables))
        return self._reported(self._strangers(STRING, variables, text))

    def _plain(self, text: str, variables: Mapping[str, object], name: str = STRING, file: str = "") -> Rendered | None:
        """A text with nothing to render, its variables looked at as those of any other; None for any other, and for one
        that is too large: the renderer says so."""
        budgets = self._budgets
        most = min(budgets.source_bytes, budgets.rendered_bytes)
        if len(text) > most or text.count("\n") > budgets.nodes or not is_plain(text):
            return None
        if not self.policy.is_unsafe:
            wrap({**self._global_vars, **variables}, str, budgets)
        return Rendered.as_is(text.removesuffix("\n"), name, file)

    def _is_own(self, file: Path) -> bool:
        return self.policy.owns(file) or os.path.realpath(file).startswith(os.path.join(library(), ""))

    @cached_property
    def _renderer(self) -> Renderer:
        from forgather_mem.config.rendering.render import Renderer  # imports Jinja: half the time of a small load

        return Renderer(self._searcher, self._budgets, self._global_vars, self.policy.is_unsafe, self._is_own)

    def _strangers(self, name: str, variables: Mapping[str, object], text: str | None = None) -> Rendered:
        from forgather_mem.config.rendering.stranger import render

        return render(self._request(name, variables, text))

    def _request(self, name: str, variables: Mapping[str, object], text: str | None = None) -> Request:
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

    def _config(self, rendered: Rendered, variables: Mapping[str, object]) -> Config:
        graph = parse(rendered, self._budgets)
        given = (*addresses_in(self._global_vars), *addresses_in(variables))
        resolver = partial(
            Resolver, graph, self.policy, budgets=self._budgets, addresses=given, num_chars=len(rendered.text),
            folder_of=self._folder_of,
        )  # fmt: skip
        return Config(rendered, graph, self.policy, resolver, partial(self._parent, rendered, variables))

    def _parent(self, rendered: Rendered, variables: Mapping[str, object]) -> Config | None:
        with missing(TemplateError):  # it is none by itself
            return self.load(rendered.parent, **variables) if rendered.parent else None
        return None

    def _folder_of(self, name: str) -> str | None:
        with missing(TemplateError):  # "<string>", or a deleted file
            return str(found.file.parent) if (found := self._searcher.find(name)) else None
        return None


@dataclass(eq=False, repr=False)
class Config:
    """A loaded template: its text, its graph, and the objects it describes.

    `config[target]` builds a target once; targets accessed in this way share their common parts. The config keeps these
    objects; `construct` always builds new ones and keeps none.
    """

    rendered: Rendered
    graph: Graph
    policy: Policy
    _make_resolver: Callable[[Mapping[str, object]], Resolver]
    _parent: Callable[[], Config | None]

    @cached_property
    def text(self) -> str:
        """The rendered text."""
        return self.rendered.shown

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets that can be built."""
        return self.graph.targets

    def construct(
        self, targets: str | Iterable[str] | None = None, /, *, context_vars: Mapping[str, object] | None = None
    ) -> Any:
        """Build new objects from the template.

        Args:
            targets: One target; several (the result is a dict); None for the whole document.
            context_vars: Values for `!var`: any objects. `pp_config`, the text, is always there.

        Raises:
            TemplateError: for an unknown target, an unbound variable, a refused name, arguments that don't fit, or an
                exception in a constructor, which is then the cause. All but the last before anything is built.
        """
        construction = Construction(self._resolver(context_vars or {}))
        if targets is None:
            return construction.build([self.graph.root])[0]
        if isinstance(targets, str):
            return construction.build([self.target(targets)])[0]
        names = list(targets)
        return dict(zip(names, construction.build([self.target(name) for name in names]), strict=True))

    def __getitem__(self, target: str) -> Any:
        return self._shared.build([self.target(target)])[0]

    def __contains__(self, target: object) -> bool:
        return target in self.targets

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def names(self, targets: Iterable[str] | None = None) -> list[NameUse]:
        """The names that targets would import, each at its first occurrence."""
        return self._resolver({}).uses(node for node in self.reached(targets) if isinstance(node, CallNode))

    def reached(self, targets: Iterable[str] | None = None) -> Iterator[Node]:
        """Every node that is built for these targets."""
        return self._resolver({}).reached(self._roots(targets))

    def variables(self, targets: Iterable[str] | None = None) -> list[VarNode]:
        """The variables that targets use, at each occurrence."""
        return [node for node in self.reached(targets) if isinstance(node, VarNode)]

    def misfits(
        self, targets: Iterable[str] | None = None, *, context_vars: Mapping[str, object] | None = None
    ) -> list[TemplateError]:
        """Allowed names that can't be imported, arguments and values that don't fit. Imports the names; of objects it
        builds our own callbacks and their parts only, which do nothing, and keeps none."""
        return Search(self._resolver(context_vars or {})).run(self._roots(targets))

    def callee(self, node: CallNode) -> object:
        """What a call calls, imported if necessary; None if it can't be, or is refused."""
        with contextlib.suppress(TemplateError):
            return Builder(self._resolver({}), {}, {}).callee(node).function
        return None

    def unbound(self, context_vars: Mapping[str, object]) -> Iterator[TemplateError]:
        """The errors about variables that have no value, each once."""
        return self._resolver(context_vars).unbound(self.reached())

    def lost(self) -> dict[str, TemplateError]:
        """The targets of the template that it extends, which it has not: with a block it replaces what they were in."""
        parent, found = self._parent(), {}
        for name in parent.targets if parent is not None else ():
            inside = parent.graph.place_of(name).block if parent is not None and name not in self.targets else None
            lines = range(1, min(self.rendered.text.count("\n") + 1, MAX_NAMES) + 1) if inside else ()
            here = next((place for place in map(self.rendered.place, lines) if place.block == inside), None)
            if here is not None and parent is not None:
                message = f"the target {name!r} of {parent.rendered.name} is lost: this replaces its block {inside!r}"
                found[name] = here.error(message, hint="begin the block with == super(), which prints the parent's")
        return found

    @cached_property
    def _shared(self) -> Construction:
        return Construction(self._resolver({}))

    def _resolver(self, context_vars: Mapping[str, object]) -> Resolver:
        return self._make_resolver({OWN_VARIABLE: self.text, **context_vars})

    def _roots(self, targets: Iterable[str] | None) -> list[Value]:
        return [self.graph.root] if targets is None else [self.target(name) for name in targets]

    def target(self, name: str) -> Value:
        """The part of the graph that a target is.

        Raises:
            TemplateError: if there is none of this name.
        """
        if name in self.targets:
            return self.graph.target(name)
        if name in (lost := self.lost()):
            raise lost[name]
        message = f"there is no target {name!r}"
        hint = did_you_mean(name, self.targets) or f"the targets are {', '.join(self.targets[:20])}"
        hint = hint if self.targets else "the document has no targets"
        raise TemplateError(message, template=self.rendered.name, hint=hint)
