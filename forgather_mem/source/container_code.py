"""The lines of the user's code that add to one container."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forgather_mem.source.syntax import Named, Region, local_names, tree_of

_ADDS = frozenset(("append", "appendleft", "extend", "extendleft", "add", "insert", "setdefault", "update", "put",
                   "put_nowait", "enter_context", "push"))  # fmt: skip
_PUSHES = frozenset(("heappush", "insort", "insort_left", "insort_right"))
_JOINS = frozenset(("cat", "stack", "concatenate", "append", "vstack", "hstack"))
_ITEMS = frozenset(("get", "setdefault"))
# The rank of an assignment that shows no growth: how a chain or a sum is made
_ASSIGNS = 6


@dataclass(slots=True)
class _Code:
    """One region, with the names that it gives to the container (`direct`) and to items of it."""

    named: Named
    region: Region
    is_list: bool
    direct: set[str] = field(default_factory=set)
    items: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for _ in range(2):  # an alias of an alias
            for node in ast.walk(self.region.node):
                if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                    self._bind(node.targets[0].id, node.value)
                elif isinstance(node, ast.For | ast.comprehension):
                    self._loop(node.target, node.iter)

    def _bind(self, name: str, value: ast.expr) -> None:
        depth = self.depth(value)
        if depth == 0:
            self.direct.add(name)
        elif depth:
            self.items.add(name)

    def _loop(self, target: ast.expr, iterated: ast.expr) -> None:
        method = _method(iterated)
        over = iterated.func.value if method in ("values", "items") else iterated  # type: ignore[attr-defined]
        if self.depth(over) is not None:
            names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
            self.items.update(names[-1:])

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
            if node.id in self.items:
                return deep + 1
            if node.id in self.direct:
                return deep
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

    def additions(self, assigned: bool = False) -> Iterator[tuple[int, ast.AST]]:
        """Rank (the clearest first) and place of what adds to the container, or, `assigned`, of any assignment."""
        for node in ast.walk(self.region.node):
            rank = self._adds(node)
            if rank is not None and rank < (_ASSIGNS + 1 if assigned else _ASSIGNS):
                yield rank, node

    def _adds(self, node: ast.AST) -> int | None:
        if isinstance(node, ast.Attribute) and node.attr in _ADDS:  # called here, or given away: map(x.append, rows)
            return 0 if self.is_subject(node.value) else None
        if isinstance(node, ast.Call):
            return 2 if _called(node) in _PUSHES and node.args and self.is_subject(node.args[0]) else None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitOr):
            return 3 if self.is_subject(node.target) else None
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            ranks = (self._assigns(target, node.value) for target in targets)
            return next((rank for rank in ranks if rank is not None), None)
        return None

    def _assigns(self, target: ast.expr, value: ast.expr) -> int | None:
        if isinstance(target, ast.Subscript) and self.is_subject(target.value):
            return 1 if not self.is_list or isinstance(target.slice, ast.Slice) else None
        if not self.is_subject(target):
            return None
        if self._is_in(value):
            return 4
        return 5 if any(_called(part) in _JOINS for part in ast.walk(value)) else _ASSIGNS

    def _is_in(self, node: ast.AST) -> bool:
        return any(self.is_subject(part) for part in ast.walk(node) if isinstance(part, ast.expr))


def adding_lines(named: Named, is_list: bool, *, assigned: bool = False) -> list[tuple[str, int]]:
    """The lines that add to the container, likeliest first: of the holder's own code, or else of its module.

    Args:
        named: The container.
        is_list: Whether it is a list or a deque, to which `x[index] = value` adds nothing.
        assigned: Count all that is assigned to its name, too.
    """
    for _, group in itertools.groupby(named.regions, key=lambda region: region.own):
        found = [
            (rank, node.lineno, region.file)  # type: ignore[attr-defined]
            for region in group
            for rank, node in _Code(named, region, is_list).additions(assigned)
        ]
        if found:
            return list(dict.fromkeys((file, line) for _, line, file in sorted(found)))
    return []


def calling_lines(name: str, files: Iterable[str]) -> list[tuple[str, int]]:
    """The lines of these files, file by file, that call a function whose name matches this pattern."""
    return [
        (file, line)
        for file in files
        if (tree := tree_of(file)) is not None
        for line in sorted(
            node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and re.fullmatch(name, _called(node))
        )
    ]


def _called(node: ast.AST) -> str:
    """The last name of the function that is called here; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _method(node: ast.AST) -> str:
    """The name of the method that is called here; "" for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
