"""The lines of the user's code that add to one container."""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from forgather_mem.source.syntax import Named, Region, local_names, tree_of

_ADDS = frozenset(("append", "appendleft", "extend", "extendleft", "add", "insert", "setdefault", "update", "put",
                   "put_nowait", "enter_context", "push", "subtract", "frombytes", "fromlist", "fromfile",
                   "fromunicode", "write", "writelines"))  # fmt: skip
_PUSHES = frozenset(("heappush", "insort", "insort_left", "insort_right"))
_JOINS = frozenset(("cat", "stack", "concatenate", "append", "vstack", "hstack"))
_ONE_OF_ALL = _JOINS | {"concat", "array", "asarray", "pad_sequence", "dim_zero_cat"}
_ITEMS = frozenset(("get", "setdefault"))


@dataclass(slots=True)
class _Code:
    """One region, with the names that it gives to what has the name, and how many items deep inside it each is."""

    named: Named
    region: Region
    is_list: bool
    aliases: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _ in range(2):  # an alias of an alias
            for node in ast.walk(self.region.node):
                if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                    self._bind([node.targets[0].id], node.value)
                elif isinstance(node, ast.For | ast.comprehension):
                    over = node.iter.func.value if _method(node.iter) in ("values", "items") else node.iter  # type: ignore[attr-defined]
                    names = [part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)]
                    self._bind(names[-1:], over, deeper=1)

    def _bind(self, names: Sequence[str], value: ast.expr, deeper: int = 0) -> None:
        if (depth := self.depth(value)) is not None:
            self.aliases.update(dict.fromkeys(names, depth + deeper))

    def depth(self, node: ast.AST) -> int | None:
        """How many items deep inside what has the name this is; None if it is something else."""
        deep = 0
        while True:
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
                node, deep = node.value, deep + 1
            elif _method(node) in _ITEMS:
                node, deep = node.func.value, deep + 1  # type: ignore[attr-defined]
            else:
                break
        if isinstance(node, ast.Name):
            if node.id in self.aliases:
                return self.aliases[node.id] + deep
            return deep if not self.named.attribute and self._is_variable(node.id) else None
        return deep if isinstance(node, ast.Attribute) and self._is_attribute(node) else None

    def is_subject(self, node: ast.AST) -> bool:
        """Whether this expression is the container."""
        depth = self.depth(node)
        return depth is not None and (depth > 0 if self.named.item else depth == 0)

    def _is_variable(self, name: str) -> bool:
        if name != self.named.name:
            return False
        hides = self.named.of_module and not isinstance(self.region.node, ast.Module)
        return not hides or name not in local_names(self.region.node)

    def _is_attribute(self, node: ast.Attribute) -> bool:
        if not self.named.attribute or node.attr != self.named.name:
            return False
        receiver = node.value
        is_self = isinstance(receiver, ast.Name) and receiver.id == self.region.self_name != ""
        if not self.region.own:
            return not is_self  # of another class
        by_class = isinstance(receiver, ast.Name) and receiver.id in (self.region.class_name, "cls", "self")
        return is_self or by_class or _called(receiver) == "type" or getattr(receiver, "attr", "") == "__class__"

    def additions(self, assigned: bool) -> Iterator[tuple[bool, ast.AST]]:
        """The places of what adds to the container and, `assigned`, of other assignments, with whether it is one."""
        for node in ast.walk(self.region.node):
            targets = _targets(node)
            if targets and self.is_subject(node.value):  # type: ignore[attr-defined]
                continue  # another name for it
            if self._adds(node) or any(self._grows(target, node) for target in targets):
                yield False, node
            elif assigned and any(map(self.is_subject, targets)):
                yield True, node

    def keys_added(self) -> Iterator[ast.expr | None]:
        """The key of each addition; None of one without a key."""
        calls = {node.func: node.args for node in ast.walk(self.region.node) if _method(node) == "setdefault"}  # type: ignore[attr-defined]
        for _, node in self.additions(assigned=False):
            slots = [one.slice for one in _targets(node) if isinstance(one, ast.Subscript)]
            yield next(iter([*slots, *calls.get(node, [])]), None)

    def joins(self) -> bool:
        """Whether one is made of all that is in the container, or of what was taken out of all that is in it."""
        nodes = list(ast.walk(self.region.node))
        items = {one.value for one in nodes if isinstance(one, ast.Subscript) and not isinstance(one.slice, ast.Slice)}
        wholes = {one for one in nodes if self.is_subject(one)} - items  # without those that one item is taken out of
        made = [one for one in nodes if _targets(one) and not wholes.isdisjoint(ast.walk(one.value))]  # type: ignore[attr-defined]
        taken = {getattr(part, "id", "") for one in made for target in _targets(one) for part in ast.walk(target)}
        given = (part for node in nodes if _called(node) in _ONE_OF_ALL for one in node.args for part in ast.walk(one))  # type: ignore[attr-defined]
        return any(part in wholes or getattr(part, "id", None) in taken for part in given)

    def _adds(self, node: ast.AST) -> bool:
        entry = node.target if isinstance(node, ast.AugAssign) else None  # which may be new
        if isinstance(entry, ast.Subscript) and not self.is_list and self.is_subject(entry.value):
            return True
        joins = not isinstance(node, ast.AugAssign) or isinstance(node.op, ast.Add | ast.BitOr)
        return joins and any(map(self.is_subject, _receivers(node)))

    def _grows(self, target: ast.expr, assignment: ast.AST) -> bool:
        """Whether the target is the container, made of what was in it or joined of pieces; or what is in it."""
        if isinstance(target, ast.Subscript) and self.is_subject(target.value):
            return not self.is_list or isinstance(target.slice, ast.Slice)
        parts = ast.walk(assignment.value)  # type: ignore[attr-defined]
        return self.is_subject(target) and any(self.is_subject(part) or _called(part) in _JOINS for part in parts)


def _targets(node: ast.AST) -> list[ast.expr]:
    """What is assigned to here."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []


def adding_lines(named: Named, is_list: bool, *, assigned: bool = False) -> list[tuple[str, int]]:
    """The lines that add to the container: of the holder's own code, or else of its module.

    Args:
        named: The container.
        is_list: Whether it is a list or a deque, to which `x[index] = value` adds nothing.
        assigned: Count all that is assigned to its name, too.
    """
    for _, group in itertools.groupby(named.regions, key=lambda region: region.own):
        codes = [_Code(named, region, is_list) for region in group]
        found = [(one, code.region.file) for code in codes for one in code.additions(assigned)]
        if found:
            lines = sorted((only, node.lineno, file) for (only, node), file in found)  # type: ignore[attr-defined]
            return list(dict.fromkeys((file, line) for only, line, file in lines if only == lines[0][0]))
    return []


def is_joined(named: Named) -> bool:
    """Whether the code makes one of all that is in the container, so that it needs as much again."""
    return any(_Code(named, region, is_list=True).joins() for region in named.regions)


def is_assigned_by_index(named: Named) -> bool:
    """Whether the code puts something in places of the container that vary, as of a ring buffer's."""
    codes = [_Code(named, region, is_list=True) for region in named.regions if region.own]
    places = ((code, target) for code in codes for node in ast.walk(code.region.node) for target in _targets(node))
    slots = [(code, one) for code, one in places if isinstance(one, ast.Subscript) and code.is_subject(one.value)]
    return any(not isinstance(one.slice, ast.Slice | ast.Constant | ast.UnaryOp) for _, one in slots)


def is_keyed_by_row(named: Named) -> bool:
    """Whether all that the code adds has the argument of `__getitem__` as its key, or what is looked up by it alone.

    So there is one entry for each row at most: an epoch, a counter or chance in the key would make ever more.
    """
    codes = [_Code(named, region, is_list=False) for region in named.regions]
    keys = [_is_of_row(key, code.region.node) for code in codes for key in code.keys_added()]
    return (
        bool(keys) and all(keys) and not adding_lines(replace(named, item=True), is_list=False)
    )  # these may get longer


def _is_of_row(key: ast.AST | None, function: ast.AST) -> bool:
    if isinstance(key, ast.Subscript):  # self.paths[index]
        return isinstance(key.value, ast.Attribute | ast.Name) and _is_of_row(key.slice, function)
    if not isinstance(key, ast.Name) or getattr(function, "name", "") != "__getitem__":
        return isinstance(key, ast.Constant)
    names = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == key.id]
    if not any(isinstance(one.ctx, ast.Store) for one in names):
        return bool(key.id == function.args.args[-1].arg)  # type: ignore[attr-defined]
    set_to = [node.value for node in ast.walk(function) if any(one in names for one in _targets(node))]  # type: ignore[attr-defined]
    return len(set_to) == 1 and isinstance(set_to[0], ast.Subscript) and _is_of_row(set_to[0], function)


def added_to(file: str, line: int) -> str | None:
    """What this line adds to, as it is written there; None where that is no single expression on one line."""
    tree = tree_of(file)
    nodes = [node for node in ast.walk(tree) if getattr(node, "lineno", 0) == line] if tree is not None else []
    found = [receiver for node in nodes for receiver in (*_receivers(node), *_remade(node))]
    rest = [one for one in found[1:] if all(one is not part for part in ast.walk(found[0]))]
    # The last ones of a heap are not the latest
    one = found[0] if found and not rest and "heappush" not in map(_called, nodes) else None
    gets = isinstance(one, ast.Call) and _method(one) in _ITEMS and bool(one.args)  # an entry, made if it is not there
    parts = [one.func.value, one.args[0]] if gets else [one] if one is not None else []  # type: ignore[union-attr]
    texts = [ast.get_source_segment("".join(linecache.getlines(file)), part) or "\n" for part in parts]
    return None if not texts or "\n" in "".join(texts) else "[".join(texts) + "]" * gets


def _receivers(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, ast.Attribute):  # called here, or given away: map(x.append, rows)
        return [node.value] * (node.attr in _ADDS)
    if isinstance(node, ast.Call):
        return node.args[:1] if _called(node) in _PUSHES else []
    return [node.target] if isinstance(node, ast.AugAssign) else []


def _remade(node: ast.AST) -> Sequence[ast.expr]:
    made_of = {ast.unparse(part) for target in _targets(node) for part in ast.walk(node.value)}  # type: ignore[attr-defined]
    return [one for one in _targets(node) if ast.unparse(one) in made_of]


def _called(node: ast.AST) -> str:
    """The last name of the function that is called here; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _method(node: ast.AST) -> str:
    """The name of the method that is called here; "" for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
