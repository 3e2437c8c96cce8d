"""What the user's code does to one container: the lines that add to it, and whether it keeps it small."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from forgather_mem.heap.syntax import Function, Named, Region, local_names, tree_of

_ADDS = frozenset(("append", "appendleft", "extend", "extendleft", "add", "insert", "setdefault", "update", "put",
                   "put_nowait", "enter_context", "push"))  # fmt: skip
_TAKES = frozenset(("pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait"))
_PUSHES = frozenset(("heappush", "insort", "insort_left", "insort_right"))
_JOINS = frozenset(("cat", "stack", "concatenate", "append", "vstack", "hstack"))
_ITEMS = frozenset(("get", "setdefault"))
# The rank of an assignment that shows no growth: how a chain or a sum is made
_ASSIGNS = 6
# A container that is more than so many times as long as a bound is not held to it.
_OVER = 2.0

Lookup = Callable[[str, bool], object]  # the value of a name, and whether it is an attribute of the holder


@dataclass(slots=True)
class _Code:
    """One region, with the names that it gives to the container (`direct`), to items of it and to its length."""

    named: Named
    region: Region
    is_list: bool
    direct: set[str] = field(default_factory=set)
    items: set[str] = field(default_factory=set)
    lengths: set[str] = field(default_factory=set)

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
        elif _called(value) == "len" and self.is_subject(value.args[0]):  # type: ignore[attr-defined]
            self.lengths.add(name)

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
        if self.named.any_receiver:
            return True
        receiver = node.value
        is_self = isinstance(receiver, ast.Name) and receiver.id == self.region.self_name != ""
        if not self.region.own:
            return not is_self  # of another class
        by_class = isinstance(receiver, ast.Name) and receiver.id in (self.region.class_name, "cls", "self")
        return is_self or by_class or _called(receiver) == "type" or getattr(receiver, "attr", "") == "__class__"

    def additions(self, assigned: bool = False) -> Iterator[tuple[int, ast.AST]]:
        """Rank (the clearest first) and place of what adds to the container, or, `assigned`, of any assignment."""
        for node in ast.walk(self.region.node):
            rank = self._adds(node, assigned)
            if rank is not None and rank < (_ASSIGNS + 1 if assigned else _ASSIGNS):
                yield rank, node

    def _adds(self, node: ast.AST, assigned: bool) -> int | None:
        if isinstance(node, ast.Call):
            if _method(node) in _ADDS and self.is_subject(node.func.value):  # type: ignore[attr-defined]
                return 0
            return 2 if _called(node) in _PUSHES and node.args and self.is_subject(node.args[0]) else None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitOr):
            return 3 if self.is_subject(node.target) else None
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            ranks = (self._assigns(target, node.value, assigned) for target in targets)
            return next((rank for rank in ranks if rank is not None), None)
        return None

    def _assigns(self, target: ast.expr, value: ast.expr, assigned: bool) -> int | None:
        """`assigned`: what is made shorter counts, too: its graph does not become shorter."""
        if isinstance(target, ast.Subscript) and self.is_subject(target.value):
            by_key = isinstance(target.slice, ast.Slice) if self.is_list else True
            return 1 if by_key and not self.shortens(target, value) else None
        if not self.is_subject(target) or (not assigned and self.shortens(target, value)):
            return None
        if any(self.is_subject(part) for part in ast.walk(value) if isinstance(part, ast.expr)):
            return 4
        return 5 if any(_called(part) in _JOINS for part in ast.walk(value)) else _ASSIGNS

    def shortens(self, target: ast.expr, value: ast.expr) -> bool:
        """Whether this assigns a slice of the container to it: `x = x[-9:]`, `x[:] = x[-9:]`, also within a call."""
        base = target.value if isinstance(target, ast.Subscript) else target
        if not self.is_subject(base):
            return False
        return any(
            isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice) and self._mentions(part.value)
            for part in ast.walk(value)
        ) and not any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) for part in ast.walk(value))

    def _mentions(self, node: ast.AST) -> bool:
        return any(self.is_subject(part) for part in ast.walk(node) if isinstance(part, ast.expr))

    def takes(self, statements: Iterable[ast.AST]) -> bool:
        """Whether some of these statements takes something out of the container."""
        return any(self._takes(node) for statement in statements for node in ast.walk(statement))

    def _takes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            if _method(node) in _TAKES:
                return self.is_subject(node.func.value)  # type: ignore[attr-defined]
            return _called(node) == "heappop" and bool(node.args) and self.is_subject(node.args[0])
        if isinstance(node, ast.Delete):
            return any(isinstance(one, ast.Subscript) and self.is_subject(one.value) for one in node.targets)
        if isinstance(node, ast.Assign):
            (target, *_), value = node.targets, node.value
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
                return self.is_subject(target.value)
            return self.is_subject(target) and (self.shortens(target, value) or not self._mentions(value))
        return False

    def length_check(self, test: ast.expr, lookup: Lookup, count: int) -> str:
        """ "over" if it holds for a long container, "under" for a short one, "" if it says nothing of its length."""
        if isinstance(test, ast.BoolOp):
            return next((found for part in test.values if (found := self.length_check(part, lookup, count))), "")
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return ""
        left, right, sort = test.left, test.comparators[0], type(test.ops[0])
        if self._has_length(right):
            left, right = right, left
            sort = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}.get(sort, sort)
        every = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod)  # at each 100th item
        if not self._has_length(left) or (not every and self._is_refuted(right, lookup, count)):
            return ""
        return "over" if sort in (ast.Gt, ast.GtE, ast.Eq) else "under" if sort in (ast.Lt, ast.LtE) else ""

    def _has_length(self, node: ast.expr) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.lengths:
                return True
            if _called(part) == "len" and part.args and self.is_subject(part.args[0]):  # type: ignore[attr-defined]
                return True
            if _method(part) == "qsize" and self.is_subject(part.func.value):  # type: ignore[attr-defined]
                return True
        return False

    def _is_refuted(self, limit: ast.expr, lookup: Lookup, count: int) -> bool:
        """Whether the container is already longer than this limit allows."""
        value: object = None
        if isinstance(limit, ast.Constant):
            value = limit.value
        elif isinstance(limit, ast.Attribute) and isinstance(limit.value, ast.Name):
            value = lookup(limit.attr, True)
        elif isinstance(limit, ast.Name):
            value = lookup(limit.id, False)
        return isinstance(value, int | float) and count > _OVER * value + 1


def adding_lines(named: Named, is_list: bool, *, assigned: bool = False) -> list[tuple[str, int]]:
    """The lines that add to the container, likeliest first: the holder's own code, then its module.

    Args:
        named: The container.
        is_list: Whether it is a list or a deque, to which `x[index] = value` adds nothing.
        assigned: Count all that is assigned to its name, too.
    """
    found = []
    for own, group in itertools.groupby(named.regions, key=lambda region: region.own):
        for region in group:
            code = _Code(named, region, is_list)
            found += [(not own, rank, node.lineno, region.file) for rank, node in code.additions(assigned)]  # type: ignore[attr-defined]
    return list(dict.fromkeys((file, line) for _, _, line, file in sorted(found)))


def calling_lines(names: Iterable[str], files: Iterable[str], keyword: str = "") -> list[tuple[str, int]]:
    """The lines of these files that call a function whose name matches the first of these patterns with any match.

    With a keyword, those calls that pass it and not as False.
    """
    trees = [(file, tree) for file in files if (tree := tree_of(file)) is not None]
    for name in map(re.compile, names):
        found = [
            (file, node.lineno)
            for file, tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and name.fullmatch(_called(node)) and _passes(node, keyword)
        ]
        if found:
            return sorted(found, key=lambda one: (list(dict(trees)).index(one[0]), one[1]))
    return []


def bounding_line(named: Named, is_list: bool, count: int, lookup: Lookup) -> tuple[str, int] | None:
    """The line by which the holder's own code keeps the container small; None without such code.

    Args:
        named: The container.
        is_list: Whether it is a list or a deque, to which `x[index] = value` adds nothing.
        count: Its present length: a limit that it has passed by far is none.
        lookup: The values of the names in limits.
    """
    codes = [_Code(named, region, is_list) for region in named.regions]
    adding = [code for code in codes if any(True for _ in code.additions())]
    own = [code for code in codes if code.region.own or (code in adding and not any(c.region.own for c in adding))]
    takers = {code.region.node.name for code in own if _is_def(code.region.node) and code.takes([code.region.node])}  # type: ignore[attr-defined]
    guarded: set[ast.AST] = set()
    for code in own:
        found = _taking_line(code, takers, lookup, count)
        if found is not None:
            return code.region.file, found
        guarded |= _guarded(code, lookup, count)
    all_of_them = [(node, code) for code in adding for _, node in code.additions()]
    if all_of_them and all(node in guarded for node, _ in all_of_them):
        return all_of_them[0][1].region.file, all_of_them[0][0].lineno  # type: ignore[attr-defined]
    return None


def _taking_line(code: _Code, takers: set[str], lookup: Lookup, count: int) -> int | None:
    """Where something is taken out because the container is long, or all but a slice of it is dropped."""
    for node in ast.walk(code.region.node):
        if isinstance(node, ast.If | ast.While):
            check = code.length_check(node.test, lookup, count)
            part = node.body if check == "over" else node.orelse if check == "under" else []
            if not part and isinstance(node, ast.While) and _exceeds(node.test):
                part = node.body  # a size that is counted otherwise: while self.nbytes > self.most
            if code.takes(part) or any(_calls(part, name) for name in takers):
                return node.lineno
        elif _drops_all_but_few(code, node):
            return node.lineno  # type: ignore[attr-defined,no-any-return]
    return None


def _drops_all_but_few(code: _Code, node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return code.shortens(node.targets[0], node.value) and _keeps_few(node.value)
    return isinstance(node, ast.Delete) and code.takes([node]) and any(_keeps_few(one) for one in node.targets)


def _guarded(code: _Code, lookup: Lookup, count: int) -> set[ast.AST]:
    """What adds to the container only while it is short."""
    adding = {node for _, node in code.additions()}
    found: set[ast.AST] = set()
    for node in ast.walk(code.region.node):
        check = code.length_check(node.test, lookup, count) if isinstance(node, ast.If) else ""
        if check == "under":
            found |= adding & {part for one in node.body for part in ast.walk(one)}  # type: ignore[attr-defined]
        elif check == "over" and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break):  # type: ignore[attr-defined]
            found |= {one for one in adding if one.lineno > node.lineno}  # type: ignore[attr-defined]
    return found


def _keeps_few(node: ast.AST) -> bool:
    """Whether a slice in it begins at a number counted from the end, or has an end only: `[-9:]`, `[:-9]`, `[:9]`."""
    slices = [part for part in ast.walk(node) if isinstance(part, ast.Slice)]
    return any(
        isinstance(part.lower, ast.UnaryOp) or (part.lower is None and part.upper is not None) for part in slices
    )


def _exceeds(test: ast.expr) -> bool:
    parts = [part for part in ast.walk(test) if isinstance(part, ast.Compare)]
    return any(isinstance(sort, ast.Gt | ast.GtE) for part in parts for sort in part.ops)


def _calls(statements: Iterable[ast.AST], name: str) -> bool:
    return any(name in (_called(node), _method(node)) for statement in statements for node in ast.walk(statement))


def _is_def(node: ast.AST) -> bool:
    return isinstance(node, Function) and not isinstance(node, ast.Lambda)


def _called(node: ast.AST) -> str:
    """The last name of the function that is called here; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _passes(call: ast.Call, keyword: str) -> bool:
    """
    >>> [_passes(ast.parse(text).body[0].value, "deep") for text in ("f(deep=True)", "f(deep=False)", "f()")]
    [True, False, False]
    """
    return not keyword or any(
        part.arg == keyword and not (isinstance(part.value, ast.Constant) and part.value.value is False)
        for part in call.keywords
    )


def _method(node: ast.AST) -> str:
    """The name of the method that is called here; "" for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
