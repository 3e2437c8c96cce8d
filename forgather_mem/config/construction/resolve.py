"""Resolves the names in a graph: imports callables, binds variables, checks arguments.

Nothing is built here. Exceptions of an imported module pass through; `construct` turns them into a `TemplateError`.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial

from forgather_mem.config.graph.nodes import TEXT, CallNode, DictNode, Graph, Node, Paths, Value, VarNode, walk_nodes
from forgather_mem.config.graph.scalars import is_text
from forgather_mem.config.graph.tags import missing_colon_hint
from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.policy.policy import NameUse, Policy
from forgather_mem.config.policy.remote_code import ArgumentCheck, addresses_in, is_below
from forgather_mem.errors import TemplateError, did_you_mean


@dataclass(frozen=True, slots=True)
class Parameters:
    """The signature of a callable.

    Attributes:
        positional: Parameters that can be passed by position, in order.
        named: Parameters that can be passed by keyword.
        required: Parameters without a default.
        more_positions: It has `*args`.
        more_names: It has `**kwargs`.
    """

    positional: tuple[str, ...]
    named: frozenset[str]
    required: frozenset[str]
    more_positions: bool
    more_names: bool


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a call can't work: half a sentence, the offending keyword (None for the whole call), and the fix."""

    message: str
    argument: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Callee:
    """A resolved callable.

    Attributes:
        function: The callable.
        parameters: What it takes, where Python can tell.
        is_checked_late: Whether its arguments fit is looked at when they are built, not only ahead.
        is_guarded: Its arguments may hold nothing that leads to code, an address or a file.
        is_value: It makes a plain value: a built-in of templates, whose time and size we answer for.
    """

    function: Callable[..., object]
    parameters: Parameters | None = None
    is_checked_late: bool = False
    is_guarded: bool = False
    is_value: bool = False


OWN_VARIABLE = "pp_config"
"""A variable that every construction has: the text of the template, for loggers that record it."""

_OF_ARGUMENT = re.compile(r"\w+: \w+\((\w+)=")  # as the constructors of this library say it
_MEANT = {"[Nn]one": "write null for None", ".+,": "write it without the ','", r"\$\{?([^{}]+)\}?": r"write {{ \1 }}"}
_ASSIGNED = re.compile(r"(\w{1,100})\s*=\s*(\S.{0,200})")
MAX_NAMES = 1_000
"""Names of one template that are looked at; with more it is no honest one."""


@dataclass(eq=False)
class Resolver:
    """Resolves the names and variables of one construction.

    Args:
        graph: The parsed template.
        policy: Decides what may be imported.
        variables: Values for `!var`.
        budgets: How much may be built.
        addresses: Those that the person who loads gave as values.
        num_chars: Length of the template's text.
        folder_of: Takes the name of a template to the folder of its file, None for text from memory.
    """

    graph: Graph
    policy: Policy
    variables: Mapping[str, object]
    _: KW_ONLY
    budgets: Limits = DEFAULT_LIMITS
    addresses: Sequence[str] = ()
    num_chars: int = 0
    folder_of: Callable[[str], str | None] | None = None
    _callees: dict[object, Callee] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        graph = Graph(root=None)  # its `locate` belongs to a load that has ended
        return {**self.__dict__, "graph": graph, "folder_of": None, "_callees": {}, "_paths": Paths(graph)}

    def narrowed(self, names: Iterable[str]) -> Resolver:
        """A copy with only some of the variables, so that it keeps no more alive than it needs."""
        return replace(self, variables={name: self.variables[name] for name in names if name in self.variables})

    def parts(self, node: Node) -> Sequence[Node]:
        """The nodes that are built when this one is used."""
        if not node.children or (isinstance(node, VarNode) and node.variable in self.variables):
            return ()
        return () if isinstance(node, CallNode) and node.kind == "meta" else node.children

    def reached(self, roots: Sequence[Value]) -> Iterator[Node]:
        """Every node that is built for the roots, or may be when a partial is called."""
        return walk_nodes(roots, self.parts)

    def allows(self, node: CallNode) -> bool:
        """Whether the policy allows importing the name of a call."""
        return self.policy.verdict(node.constructor, self._folder(node)).allowed

    def calls(self, roots: Sequence[Value]) -> list[CallNode]:
        """All calls that the roots reach; their names are allowed and all variables bound.

        Raises:
            TemplateError: if a variable has no value, or the policy refuses a name.
        """
        nodes = list(self.reached(roots))
        for error in self.unbound(nodes):
            raise error
        calls = [node for node in nodes if isinstance(node, CallNode)]
        doubtful = (node for node in calls if is_file(node) or not self.policy.verdict(node.constructor).allowed)
        self.policy.check(self.uses(doubtful))
        return calls

    def unbound(self, nodes: Iterable[Node]) -> Iterator[TemplateError]:
        """The errors about variables that have no value, each where it stands first."""
        names = set(self.variables)
        for node in nodes:
            if isinstance(node, VarNode) and not node.has_default and node.variable not in names:
                names.add(node.variable)
                hint = did_you_mean(node.variable, self.variables)
                given = f"give context_vars={{{node.variable!r}: ...}}, or --set {node.variable}=..."
                message = f"the variable {node.variable!r} has no value and no default"
                yield self.error(node, message, hint=f"{hint} Or {given}" if hint else given)

    def callee(self, node: CallNode) -> Callee:
        """Import the callable of a call. The built-ins that make values are not imported: `Values` has them.

        Raises:
            TemplateError: if it does not exist or is refused. Exceptions of a module pass through.
        """
        key = (node.constructor, self._folder(node), node.searchpath)
        found = self._callees.get(key)
        if found is None:
            function = self.policy.load(self._use(node))
            late = is_file(node) or node.constructor.startswith("transformers")
            guarded = self.policy.guards(node.constructor)
            found = self._callees[key] = Callee(function, parameters_of(function), late, guarded)
        return found

    def uses(self, calls: Iterable[CallNode]) -> list[NameUse]:
        """The names of calls, each where it stands first, for the policy; of very many the first ones."""
        nodes: dict[object, CallNode] = {}
        for node in calls:
            nodes.setdefault((node.constructor, node.searchpath), node)
            if len(nodes) == MAX_NAMES:
                break
        return [self._use(node) for node in nodes.values()]

    def check(
        self,
        node: CallNode,
        callee: Callee,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        more_come: bool = False,
    ) -> None:
        """Refuse arguments that don't fit, before the call; none is missing yet where `more_come`.

        Raises:
            TemplateError: names the first of them.
        """
        takes = callee.parameters
        found = misfit(takes, len(args), kwargs.keys(), more_come=more_come) if takes else None
        if found is not None:
            hint = self.missing_colon(node, callee) or found.hint
            raise self.error(node, f"{found.message} of {node.constructor}", found.argument, hint)

    def guard(
        self, node: CallNode, callee: Callee, args: Sequence[object], kwargs: Mapping[str, object], check: ArgumentCheck
    ) -> None:
        """Refuse arguments that the policy forbids, before the call; parts may still be nodes.

        Raises:
            TemplateError: names the first of them.
        """
        if not callee.is_guarded:
            return
        names = callee.parameters.positional if callee.parameters else ()
        rest, named = args[len(names) :], {**dict(zip(names, args, strict=False)), **kwargs}
        found = check.address(node.constructor, rest, named)
        if found is None and node.constructor.startswith("transformers"):
            found = check.of_transformers(node.constructor, rest, named)
        if found is not None:
            raise self.policy.refuse_argument(self._use(node), found)

    def allows_address(self, address: str) -> bool:
        """Whether an address is one that a person opened, or gave as a value."""
        if self.policy.allows_address(address):
            return True
        given = {name: value for name, value in self.variables.items() if name != OWN_VARIABLE}
        return any(is_below(address, known) for known in (*self.addresses, *addresses_in(given)))

    def missing_colon(self, node: CallNode, callee: Callee) -> str | None:
        """The question whether the text `name value`, all a call is given, was meant as `name: value`; None if not."""
        takes, text = callee.parameters, node.args[0] if TEXT in node.marks else None
        hint = missing_colon_hint(text)
        if hint is None or takes is None or not isinstance(text, str):
            return None
        name, value = re.split(r"\s+|:", text, maxsplit=1)
        is_sentence = value[0] not in "[{!" and is_text(value)
        reads_like_one = takes.positional[:1] == (name,) and is_sentence  # as `text follows` for say(text)
        return hint if name in takes.named and not reads_like_one else None

    def raised(
        self, node: CallNode, callee: Callee, args: Sequence[object], kwargs: Mapping[str, object], error: Exception
    ) -> TemplateError:
        """The error about an exception of a callable; the caller raises it."""
        taken = callee.parameters.positional if callee.parameters else ()
        names = [*taken[: len(args)], *(f"args[{i}]" for i in range(len(taken), len(args))), *kwargs]
        shown = in_words(error)
        named = _OF_ARGUMENT.match(shown)
        with_these = f"its arguments were {', '.join(names[:20])}" if names else "it was given no arguments"
        message = f"{node.constructor} raised {shown}{'' if named else '; ' + with_these}"
        colon = self.missing_colon(node, callee)
        hint = colon or meant_arguments(node, callee) or meant_value(kwargs.get(named[1]) if named else None)
        return self.error(node, message, TEXT if colon else named and named[1], hint)

    def error(self, node: Node, message: str, argument: object = None, hint: str | None = None) -> TemplateError:
        """The error about a node, or about one key in it; the caller raises it."""
        marks = node.marks if isinstance(node, CallNode) else {}
        return self.graph.place(marks.get(argument, node.mark)).error(message, path=self._paths.of(node), hint=hint)

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self.graph)  # when an error wants one

    def _use(self, node: CallNode) -> NameUse:
        return NameUse(node.constructor, partial(self.error, node), self._folder(node), node.searchpath)

    def _folder(self, node: CallNode) -> str | None:
        known = self.folder_of if is_file(node) else None
        return known(self.graph.place(node.mark).template) if known else None


def in_words(error: Exception) -> str:
    """An exception as people are told it."""
    if isinstance(error, TemplateError):
        return f"TemplateError: {error.message[:400]}"
    return "".join(traceback.format_exception_only(error)).strip()[:400]  # also when its __str__ raises


def meant_arguments(node: CallNode, callee: Callee) -> str | None:
    """How the one thing that a call is given would be its arguments by name, if it looks like them."""
    known = callee.parameters.named if callee.parameters else ()
    (given,) = node.args if len(node.args) == 1 else (None,)
    if isinstance(given, DictNode) and given.entries and all(key in known for key in given.entries):
        return f"an argument has no '- ' before it: {next(iter(given.entries))}: ..."
    text = _ASSIGNED.fullmatch(given) if isinstance(given, str) else None
    return f"did you mean '{text[1]}: {text[2]}'?" if text and text[1] in known else None


def meant_value(value: object) -> str | None:
    """How a value that was refused may be meant.

    >>> meant_value("None"), meant_value("10,"), meant_value("${steps}"), meant_value({"steps | int": None})
    ('write null for None', "write it without the ','", 'write {{ steps }}', 'write {{ steps | int }}')
    """
    if isinstance(value, dict) and [*value.values()] == [None]:
        value = f"${{{next(iter(value))}}}"
    found = ((re.fullmatch(said, value if isinstance(value, str) else ""), hint) for said, hint in _MEANT.items())
    return next((one.expand(hint) for one, hint in found if one), None)


def is_file(node: CallNode) -> bool:
    """Whether a call names something in a Python file."""
    return ".py:" in node.constructor


def parameters_of(function: Callable[..., object]) -> Parameters | None:
    """The signature of a callable, or None where Python has none (many functions written in C).

    The outermost wrapper counts: what Python accepts is never reported here, although the function inside the wrapper
    may still refuse it. For the same reason a signature that a class only declares (`__signature__`) is not followed.
    """
    if getattr(function, "__signature__", None) is not None:
        return None
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return None
    every = signature.parameters.values()
    plain = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Parameters(
        positional=tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY),
        named=frozenset(p.name for p in plain if p.kind is not p.POSITIONAL_ONLY),
        required=frozenset(p.name for p in plain if p.default is p.empty),
        more_positions=any(p.kind is p.VAR_POSITIONAL for p in every),
        more_names=any(p.kind is p.VAR_KEYWORD for p in every),
    )


def misfit(takes: Parameters, num_args: int, names: Set[str], *, more_come: bool = False) -> Misfit | None:
    """The first reason why a call with these arguments would fail, or None.

    Args:
        takes: The callable's signature.
        num_args: Number of positional arguments given.
        names: The keywords given.
        more_come: Further arguments may still be added, so none is missing yet.

    >>> misfit(parameters_of(lambda lr, momentum=0: None), 0, {"lr", "momentun"})
    Misfit(message="unknown argument 'momentun'", argument='momentun', hint="did you mean 'momentum'?")
    """
    by_name = names & takes.named
    if num_args == 0 and (takes.more_names or by_name == names) and (more_come or takes.required <= by_name):
        return None
    if num_args > len(takes.positional) and not takes.more_positions:
        return Misfit(f"too many positional arguments ({num_args}, at most {len(takes.positional)})")
    filled = takes.positional[:num_args]
    for name in names:
        if name in filled and name in takes.named:
            return Misfit(f"argument {name!r} is given twice, by position {filled.index(name)} and by name", name)
        if name not in takes.named and not takes.more_names:
            return _unknown(takes, name, names)
    missing = [] if more_come else [name for name in takes.required if name not in by_name and name not in filled]
    if missing:
        order = {name: i for i, name in enumerate(takes.positional)}
        missing.sort(key=lambda name: (order.get(name, len(order)), name))
        shown = ", ".join(map(repr, missing))
        return Misfit(f"missing argument{'s' if len(missing) > 1 else ''} {shown}", None, f"it takes {_list(takes)}")
    return None


def _unknown(takes: Parameters, name: str, names: Collection[str]) -> Misfit:
    if name in takes.positional:
        return Misfit(f"argument {name!r} is taken by position only", name, f"write arg{takes.positional.index(name)}")
    free = sorted(takes.named - set(names))
    return Misfit(f"unknown argument {name!r}", name, did_you_mean(name, free) or f"it takes {_list(takes)}")


def _list(takes: Parameters) -> str:
    names = [*takes.positional, *sorted(takes.named - set(takes.positional))]
    return ", ".join(names[:20]) + ", ..." * (len(names) > 20) or "no arguments"
