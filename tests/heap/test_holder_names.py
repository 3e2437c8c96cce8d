"""What the user's code calls a container, wherever it is."""

import queue
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.source.container_code import adding_lines
from tests.heap.test_reachable import Holder
from tests.heap.users_modules import make_module, named

pytestmark = pytest.mark.alone(forked=True)  # each looks through the heap, of which all tests have more


def test_variables_of_modules_and_functions_are_told_from_others_of_that_name(tmp_path: Path) -> None:
    text = """
ROWS = []
def fill(x):
    ROWS.append(x)
def other(x):
    ROWS = []
    ROWS.append(x)
    if len(ROWS) > 3:
        ROWS.pop()
def make():
    rows = []
    def step(x):
        rows.append(x)
    def drop(rows):
        del rows[:-3]
    return step
STEP = make()
"""
    made = make_module(tmp_path, text)
    rows = made.STEP.__closure__[0].cell_contents
    (closure,) = named(rows)
    assert [line for _, line in adding_lines(closure, is_list=True)] == [13]
    (of_module,) = named(made.ROWS)
    assert [line for _, line in adding_lines(of_module, is_list=True)] == [4]


def test_lines_that_add_come_from_the_holders_own_class_first(tmp_path: Path) -> None:
    text = """
class Other:
    def __init__(self):
        self.kept = []
    def add(self, x):
        self.kept.append(x)
class Keeps:
    def __init__(self):
        self.kept = []
    def start(self):
        masks = kept = 3
    def add(self, x):
        self.kept += [x]
def from_outside(keeps, x):
    keeps.kept.insert(0, x)
KEEPS = Keeps()
"""
    made = make_module(tmp_path, text)
    (kept, *_) = named(made.KEEPS.kept)
    assert [line for _, line in adding_lines(kept, is_list=True)] == [13], "what others do counts only without one"


def test_a_librarys_container_goes_by_its_attribute_wherever_that_is_named() -> None:
    holder: Any = Holder()
    holder.outbox = queue.Queue()
    holder.outbox.posted = [1]
    holder.outbox.posted.append(2)
    assert len(adding_lines(named(holder.outbox.posted)[0], is_list=True)) == 1, "the line above"


def test_a_list_that_a_class_has_goes_by_its_attribute(tmp_path: Path) -> None:
    text = """
class Keeps:
    kept = []
    by_name = {"rows": []}
    def add(self, x):
        self.kept.append(x)
        self.by_name["rows"].append(x)
KEEPS = Keeps()
"""
    made = make_module(tmp_path, text)
    (kept, *_) = named(made.Keeps.kept)
    assert (kept.name, kept.attribute, kept.item) == ("kept", True, False)
    assert [line for _, line in adding_lines(kept, is_list=True)] == [6]
    (rows, *_) = named(made.Keeps.by_name["rows"])
    assert (rows.name, rows.item) == ("by_name", True)
    assert [line for _, line in adding_lines(rows, is_list=True)] == [7]
