"""Scopes of the user's source."""

import ast
from pathlib import Path

from forgather_mem.source.syntax import (
    class_regions,
    forget_trees,
    function_regions,
    local_names,
    module_regions,
    tree_of,
)
from tests.heap.users_modules import make_module

TEXT = """
X = 1
def outer(a, *rest, key=1, **more):
    global Y
    b = Y = 2
    def inner():
        nonlocal b
        b = 3
        return a
    return inner
class Base:
    def base(self): pass
class Keeps(Base):
    @staticmethod
    def made(): pass
    def own(me): pass
"""


def test_local_names_are_pythons_own(tmp_path: Path) -> None:
    made = make_module(tmp_path, TEXT)
    tree = tree_of(made.__file__)
    outer = next(node for node in ast.walk(tree) if getattr(node, "name", "") == "outer")
    assert local_names(outer) == {"a", "rest", "key", "more", "b"}
    assert set(made.outer.__code__.co_varnames) | set(made.outer.__code__.co_cellvars) == {*local_names(outer), "inner"}
    (region,) = function_regions(made.outer(1).__code__, "a")
    assert region.node is outer, "the function in which it is local"


def test_the_regions_of_a_class_are_its_methods_then_the_rest_of_the_module(tmp_path: Path) -> None:
    made = make_module(tmp_path, TEXT)
    regions = class_regions([made.Keeps, made.Base])
    own = [(region.class_name, region.self_name) for region in regions if region.own]
    assert own == [("Keeps", ""), ("Keeps", "me"), ("Base", "self")]
    assert any(getattr(region.node, "name", "") == "outer" for region in regions if not region.own)


def test_what_is_no_python_has_no_tree(tmp_path: Path) -> None:
    file = tmp_path / "text.py"
    file.write_text("no python (")
    assert tree_of(str(file)) is None
    assert tree_of(str(tmp_path / "missing.py")) is None
    file = tmp_path / "good.py"
    file.write_text("x = 1\n")
    tree = tree_of(str(file))
    assert tree is not None
    assert len(list(module_regions(tree, str(file)))) == 1


def test_a_search_reads_only_so_much(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.py" for name in "abc"]
    for file in files:
        file.write_text(TEXT + "#" * 2**16)
    forget_trees()
    assert [tree_of(str(file)) is not None for file in (*files, files[0])] == [True, False, False, True]
    forget_trees()
    assert tree_of(str(files[1])) is not None, "the next search has as much again"
