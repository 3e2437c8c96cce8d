"""The lines of a holder's own class, function or module that add to it."""

from pathlib import Path
from typing import Any

import pytest

from forgather_mem.source.container_code import added_to, adding_lines, is_joined
from tests.heap.users_modules import make_module, named

pytestmark = pytest.mark.alone(forked=True)

HEAD = "import heapq\nfrom collections import deque\n\nclass Keeps:\n    def __init__(self):\n        self.kept = "


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """Makes a module of the user's from its text."""
    return lambda text: make_module(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ("self.kept[x] = x", False), ("self.kept[2:] = [x]", True), ("self.kept = self.kept + [x]", True),
        ("self.kept = [*self.kept, x]", True), ("self.kept = self.kept[1:] + [x]", True),
        ("heapq.heappush(self.kept, x)", True), ("heapq.heappushpop(self.kept, x)", False), ("print(self.kept)", False),
        ("kept = self.kept; kept.append(x)", True), ("kept = self.kept", False), ("self.kept = []", False),
    ],
)  # fmt: skip
def test_what_adds_to_a_list(module: Any, text: str, adds: bool) -> None:
    keeps = module(f"{HEAD}[]\n    def step(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    (kept, *_) = named(keeps.kept)
    assert bool(adding_lines(kept, is_list=True)) == adds


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        ("return torch.cat([o['x'] for o in self.kept])", True), ("xs = [o['x'] for o in self.kept]; cat(xs)", True),
        ("a, b = zip(*self.kept); return np.concatenate(b)", True), ("return np.array(self.kept)", True),
        ("return sum(o.sum() for o in self.kept)", False), ("self.kept.append(torch.cat([x, x]))", False),
        ("one = open(self.kept[x]); np.array(one)", False), ("return np.array(self.kept[1:])", True),
    ],
)  # fmt: skip
def test_a_list_is_joined_where_one_is_made_of_all_that_is_in_it(module: Any, text: str, joins: bool) -> None:
    """Also in another method than that which adds, and of a part of each."""
    adds = "    def step(self, x):\n        self.kept.append({'x': x})\n"
    keeps = module(f"{HEAD}[]\n{adds}    def end(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    assert any(map(is_joined, named(keeps.kept))) == joins


def test_to_a_mapping_an_item_is_added_by_what_adds_to_its_value(module: Any) -> None:
    keeps = module(f"{HEAD}{{}}\n    def step(self, x):\n        self.kept[x] += 1\nKEEPS = Keeps()\n").KEEPS
    assert len(adding_lines(named(keeps.kept)[0], is_list=False)) == 1


def test_of_a_graph_the_line_is_that_which_goes_on_with_it_not_the_one_that_begins_it(module: Any) -> None:
    """Also where it cuts the tensor to its length: that makes the graph no shorter."""
    text = "self.kept = torch.cat([x, self.kept])[:40]"
    keeps = module(f"{HEAD}[0]\n    def step(self, x):\n        {text}\nKEEPS = Keeps()\n").KEEPS
    (kept, *_) = named(keeps.kept)
    begun = HEAD.count("\n") + 1
    assert [line for _, line in adding_lines(kept, is_list=True, assigned=True)] == [begun + 2]


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
        "kept": [6], "recent": [7], "total": [8],
    }  # fmt: skip


def test_what_a_call_of_get_without_an_argument_returns_is_no_entry(tmp_path: Path) -> None:
    (file := tmp_path / "registered.py").write_text("registry.get().append(x)\n")
    assert added_to(str(file), 1) == "registry.get()"
