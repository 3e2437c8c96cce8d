"""The user's source as a syntax tree: the code that may name a variable or an attribute, by Python's own scopes."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType

from forgather_mem.errors import missing
from forgather_mem.source.frame_variables import all_frames
from forgather_mem.source.source_lines import is_user_file, module_files

# Of source text that is parsed in one search: the trees take some 60 bytes for each, hence 16 MiB, and 2 us
_MOST_CHARS = 2**17
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A function, or the code of a module or a class outside of its functions.

    Attributes:
        node: The function, or the statements as one module.
        self_name: The first parameter of a method, else "".
        class_name: The class whose method it is, else "".
        own: Whether it belongs to the holder's own class or function.
    """

    node: ast.AST
    file: str
    self_name: str = ""
    class_name: str = ""
    own: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the user's code calls a container.

    Attributes:
        name: Of the variable or the attribute.
        attribute: Whether it is an attribute.
        item: Whether the container is inside what has this name: `name[key]`.
        regions: The code that may mean it: the holder's own class or function first, then the rest of its module.
        of_module: Whether it is a variable of a module, which a function's own variable of that name hides.
    """

    name: str
    regions: tuple[Region, ...]
    attribute: bool = False
    item: bool = False
    of_module: bool = False


@functools.cache
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file, or of a notebook's cell; None without source, and where a search has read enough."""
    left = _chars_left()
    text = "".join(linecache.getlines(file)) if left[0] > 0 else ""
    left[0] -= len(text)
    if not text or left[0] < 0:
        return None
    with missing(SyntaxError, ValueError, RecursionError):
        return ast.parse(text)
    return None


@functools.cache
def _chars_left() -> list[int]:
    return [_MOST_CHARS]


def first_lines(file: str) -> dict[int, int]:
    """For each line of a file that of the innermost statement that it is a part of; none without source."""
    nodes = ast.walk(tree_of(file) or ast.Module([], []))  # the outer ones first
    return {
        line: node.lineno
        for node in nodes
        if isinstance(node, ast.stmt)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def forget_trees() -> None:
    """Release the trees, at the end of a search: a file of a thousand lines takes some MiB."""
    for made in (tree_of, _chars_left, local_names):
        made.cache_clear()


def class_regions(classes: Sequence[type]) -> list[Region]:
    """The methods of these classes, and after them the rest of their modules."""
    names = [cls.__name__ for cls in classes]
    around = [one for module in dict.fromkeys(cls.__module__ for cls in classes) for one in regions_of_module(module)]
    own = [one for name in names for one in around if one.class_name == name]
    return [*own, *(replace(one, own=False) for one in around if one.class_name not in names)]


def function_regions(code: CodeType, variable: str) -> list[Region]:
    """The function in which a variable of `code` is local, with the functions in it."""
    nodes = ast.walk(tree_of(code.co_filename) or ast.Module([], []))
    functions = (node for node in nodes if isinstance(node, Function) and _holds(node, code.co_firstlineno))
    around = sorted(functions, key=lambda one: one.lineno)
    around = [node for node in around if variable in local_names(node)] or around[-1:]
    return [Region(node=node, file=code.co_filename) for node in around[-1:]]


def regions_of_module(module: str, word: str = "") -> Iterator[Region]:
    """The code of a module of the user's, if this word is in its text.

    Of a notebook that is the newest definition of each name, and of its cells the statements of those that run now.
    """
    files = [file for file in module_files(module) if is_user_file(file) and _has(file, word)]
    running = {frame.f_code.co_filename for frame in all_frames()} if len(files) > 1 else files
    defined_in: dict[tuple[str, str], str] = {}
    for file in files:
        tree = tree_of(file)
        for region in () if tree is None else module_regions(tree, file):
            name = region.class_name, getattr(region.node, "name", "")
            if (file in running) if name == ("", "") else (defined_in.setdefault(name, file) == file):
                yield region


def _has(file: str, word: str) -> bool:
    """Whether the word is in the text; not by `linecache`, which would keep all of it."""
    with missing(OSError), open(file, "rb") as source:
        return word.encode() in source.read()
    return True  # a notebook's cell


def module_regions(tree: ast.Module, file: str) -> Iterator[Region]:
    """Each function of a module, each method of its classes, and what is outside of them."""
    rest = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    yield Region(node=ast.Module(body=rest, type_ignores=[]), file=file)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _methods(node, file)
    for node in tree.body:
        if isinstance(node, Function):
            yield Region(node=node, file=file)


@functools.lru_cache(maxsize=512)
def local_names(node: ast.AST) -> frozenset[str]:
    """The parameters and variables of a function, without those of functions in it and without global ones."""
    arguments = getattr(node, "args", None)
    names = {part.arg for part in ast.walk(arguments) if isinstance(part, ast.arg)} if arguments else set()
    other: set[str] = set()
    todo = list(ast.iter_child_nodes(node))
    while todo:
        part = todo.pop()
        if not isinstance(part, Function | ast.ClassDef):
            todo += ast.iter_child_nodes(part)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(part, ast.Global | ast.Nonlocal):
            other.update(part.names)
    return frozenset(names - other)


def _methods(node: ast.ClassDef, file: str) -> Iterator[Region]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in part.decorator_list)
            first = [*part.args.posonlyargs, *part.args.args][:1]
            name = first[0].arg if first and not static else ""
            yield Region(node=part, file=file, self_name=name, class_name=node.name)


def _holds(node: Function, line: int) -> bool:
    first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", ()))])
    return bool(first <= line <= (node.end_lineno or 0))
