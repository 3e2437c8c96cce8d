"""What the source of a holder's own class, function or module says of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forgather_mem.heap.container_code import adding_lines, bounding_line, calling_lines
from tests.heap.users_modules import make_module, named

pytestmark = pytest.mark.alone(forked=True)

HEAD = "import heapq\nfrom collections import deque\n\nclass Keeps:\n    def __init__(self):\n        self.kept = "


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """Makes a module of the user's from its text."""
    return lambda text: make_module(tmp_path, text)


def bound(container: Any, count: int = 10, values: dict[str, object] | None = None, item: bool = False) -> int | None:
    """The line that bounds it, counted from the class; None for no bound."""
    found = None
    for one in named(container):
        assert one.item == item
        is_list = not isinstance(container, dict)
        found = found or bounding_line(one, is_list, count, lambda name, attribute: (values or {}).get(name))
    return None if found is None else found[1]


LISTS = [
    ("if len(self.kept) > self.most: self.kept.pop(0)", True),
    ("while len(self.kept) > self.most:\n            self.kept.pop(0)", True),
    ("if len(self.kept) >= 40:\n            del self.kept[:20]", True),
    ("kept = self.kept\n        if 40 < len(kept): kept.clear()", True),
    ("size = len(self.kept)\n        if size > 40: self.kept.pop(0)", True),
    ("self.kept = self.kept[-40:]", True),
    ("self.kept[:] = self.kept[-40:]", True),
    ("del self.kept[:-40]", True),
    ("if len(self.kept) % 100 == 0: self.kept.clear()", True),
    ("if len(self.kept) > 40: self.trim()", True),
    ("if self.other and len(self.kept) > 40: self.kept = []", True),
    ("while self.held_bytes > self.most:\n            self.kept.pop(0)", True),
    ("if len(self.kept) > 1: return sum(self.kept) / len(self.kept)", False),
    ("if len(self.kept) > 40: print('long')", False),
    ("if len(self.kept) > self.most:\n            raise MemoryError", False),
    ("if len(self.other) > 40: self.other.pop()", False),
    ("if len(self.other) > 40: self.kept_too.pop()", False),
    ("if len(self.kept) > 40: other = self.other.pop()", False),
    ("if step % 100 == 0: self.kept.pop()", False),
    ("self.kept.pop()", False),
    ("if len(self.kept) > 40: self.unknown()", False),
]


@pytest.mark.parametrize(("text", "is_bounded"), LISTS)
def test_only_code_that_takes_something_out_of_a_long_container_bounds_it(
    module: Any, text: str, is_bounded: bool
) -> None:
    code = f"[]\n    def step(self, x, step):\n        self.kept.append(x)\n        {text}\n"
    code += "    def trim(self):\n        self.kept.pop(0)\n"
    keeps = module(f"{HEAD}{code}KEEPS = Keeps()\n").KEEPS
    assert (bound(keeps.kept) is not None) == is_bounded


@pytest.mark.parametrize(
    ("text", "is_bounded"),
    [
        ("if len(self.kept) < 40: self.kept.append(x)", True),
        ("if len(self.kept) < 40:\n            heapq.heappush(self.kept, x)\n"
         "        else:\n            heapq.heappushpop(self.kept, x)", True),
        ("if len(self.kept) < 40: self.kept.append(x)\n        else: self.kept[3] = x", True),
        ("if len(self.kept) >= 40: return\n        self.kept.append(x)", True),
        ("if len(self.kept) < 40: print('short')\n        self.kept.append(x)", False),
        ("if len(self.kept) < 40: self.kept.append(x)\n        else: self.kept.extend([x])", False),
        ("if len(self.kept) > 40: raise MemoryError\n        self.kept.append(x)", False),
    ],
)  # fmt: skip
def test_what_is_added_to_only_while_it_is_short_is_bounded(module: Any, text: str, is_bounded: bool) -> None:
    keeps = module(f"{HEAD}[]\n    def step(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    assert (bound(keeps.kept) is not None) == is_bounded


def test_a_limit_that_the_container_has_passed_by_far_is_none(module: Any) -> None:
    code = "[]\n    def step(self, x):\n        self.kept.append(x)\n"
    code += "        if len(self.kept) > self.most: self.kept.pop(0)\n"
    keeps = module(f"{HEAD}{code}KEEPS = Keeps()\n").KEEPS
    assert bound(keeps.kept, count=500, values={"most": 1000}) is not None
    assert bound(keeps.kept, count=500, values={"most": 10}) is None
    assert bound(keeps.kept, count=500) is not None, "nothing is known of the limit"


def test_another_class_with_an_attribute_of_that_name_bounds_nothing(module: Any) -> None:
    text = """
class Bounded:
    def __init__(self):
        self.cache = {}
    def get(self, key):
        if len(self.cache) > 64:
            self.cache.clear()
        self.cache[key] = key
class Leaks:
    def __init__(self):
        self.cache = {}
    def get(self, key):
        self.cache[key] = key
BOTH = Bounded(), Leaks()
"""
    bounded, leaks = module(text).BOTH
    assert bound(bounded.cache) == 6
    assert bound(leaks.cache) is None


def test_the_containers_in_a_container_have_bounds_of_their_own(module: Any) -> None:
    text = """
class Pools:
    def __init__(self):
        self.own, self.of = {0: [1]}, {0: [1]}
    def add(self, key, x):
        self.own.setdefault(key, []).append(x)
        pool = self.own[key]
        if len(pool) > 40:
            pool.pop(0)
        self.of[key].append(x)
        if len(self.of) > 40:
            self.of.popitem()
POOLS = Pools()
"""
    pools = module(text).POOLS
    assert bound(pools.own[0], item=True) == 8
    assert bound(pools.own) is None
    assert bound(pools.of[0], item=True) is None
    assert bound(pools.of) == 11


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ("self.kept[x] = x", False),
        ("self.kept[2:] = [x]", True),
        ("self.kept = self.kept + [x]", True),
        ("self.kept = [*self.kept, x]", True),
        ("self.kept = self.kept[-3:]", False),
        ("self.kept = self.kept[1:] + [x]", True),
        ("heapq.heappush(self.kept, x)", True),
        ("heapq.heappushpop(self.kept, x)", False),
        ("kept = self.kept; kept.append(x)", True),
        ("self.kept = []", False),
        ("print(self.kept)", False),
    ],
)
def test_what_adds_to_a_list(module: Any, text: str, adds: bool) -> None:
    keeps = module(f"{HEAD}[]\n    def step(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    (kept,) = named(keeps.kept)
    assert bool(adding_lines(kept, is_list=True)) == adds


def test_calls_are_found_by_the_functions_name_not_in_texts(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(
        '"""layer.register_forward_hook(f)"""\n# x.register_forward_hook(f)\nx = y\n(x.register_forward_hook)(f)\n'
    )
    assert calling_lines([r"register_\w*hook"], [str(file)]) == [(str(file), 4)]
    assert calling_lines(["forward_hook"], [str(file)]) == []
    file.write_text("no python (")
    assert calling_lines(["f"], [str(tmp_path / "missing.py"), str(file)]) == []


def test_of_a_graph_the_line_that_goes_on_with_it_comes_before_the_one_that_begins_it(module: Any) -> None:
    """Also where it cuts the tensor to its length: that makes the graph no shorter."""
    text = "self.kept = torch.cat([x, self.kept])[:40]"
    keeps = module(f"{HEAD}[0]\n    def step(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    (kept,) = named(keeps.kept)
    begun = HEAD.count("\n") + 1
    assert [line for _, line in adding_lines(kept, is_list=True, assigned=True)] == [begun + 2, begun]


def test_a_variable_of_a_script_is_found_where_the_script_itself_loops(module: Any) -> None:
    text = """kept, recent, total = [], [], []
def other():
    kept = []
    kept.append(1)
for x in range(50):
    kept.append([x])
    recent.append([x])
    total = total + [x]
    if len(recent) > 40:
        recent.pop(0)
"""
    made = module(text)
    lines = {name: adding_lines(named(vars(made)[name])[0], is_list=True) for name in ("kept", "recent", "total")}
    assert {name: [line for _, line in found] for name, found in lines.items()} == {
        "kept": [6],
        "recent": [7],
        "total": [8],
    }
    assert bound(made.recent) == 9
    assert bound(made.kept) is None
