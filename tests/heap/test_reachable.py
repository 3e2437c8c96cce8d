"""What is near the user's variables, and what it is called there."""

import gc
import resource
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.diagnose.leaks.heap_diff import CloserLook, merge_similar
from forgather_mem.diagnose.leaks.snapshot import chains, grown, look
from forgather_mem.diagnose.leaks.suspects import Suspect, suspect_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.system.procfs import kib_fields
from forgather_mem.units import MIB

CACHE: dict[int, Any] = {}

pytestmark = pytest.mark.alone(forked=True)


class Holder:
    everybody: list[object] = []  # noqa: RUF012  # shared on purpose

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.by_name: dict[str, list[object]] = {"rows": []}


def holder_of(thing: object) -> str:
    walk = ReachableGraph.walk(budget_s=10.0)
    (position,) = [number for number, node in enumerate(walk.nodes) if node is thing]
    return walk.holder(position)


def suspects_after(grow: Any, steps: int = 10, most: int = 3) -> list[Suspect]:
    """What is suspected of growing while `grow` was called so many times."""
    walk = ReachableGraph.walk(budget_s=10.0)
    before = look(walk, 0)
    walk.forget()
    for step in range(steps):
        grow(step)
    walk = ReachableGraph.walk(budget_s=10.0)
    found = grown(before, walk, steps)
    if not any(one.bytes_per_step > 1_000 for one in found):
        found += chains(before, walk, steps)
    return [suspect_of(one, walk) for one in found[:most]]


def line_that_adds(top: Suspect, grow: Any) -> str:
    """As a second look tells it, while `grow` is called on."""
    look = CloserLook(0, far=True, held=top.place)
    for step in range(10):
        grow(100 + step)
    return next(one.source_line for one in look.finish(10, top.bytes_per_step) if one.held_by == top.held_by)


# ---- names ----


def test_what_an_attribute_holds_is_named_by_its_class() -> None:
    holder = Holder()
    assert holder_of(holder.kept) == "Holder.kept"
    assert holder_of(holder.by_name["rows"]) == "Holder.by_name['rows']"
    assert holder_of(Holder.everybody) == "Holder.everybody"


def test_what_a_module_holds_is_named_by_the_module() -> None:
    CACHE[0] = "something"
    assert holder_of(CACHE).endswith(".CACHE")


def test_what_a_function_or_a_closure_holds_is_named_by_its_variable() -> None:
    assert holder_of([1]).startswith("local 'thing' of holder_of (tests/heap/test_reachable.py)")
    mine, holder = [1], Holder()
    holder.kept.append(lambda: mine)
    assert holder_of(mine).startswith("variable 'mine' of test_what_a_function_or_a_closure_holds")
    assert {} not in gc.get_referents(holder.kept[0]), "no dictionary was created in it"


def seen_texts() -> Iterator[int]:
    seen: dict[str, str] = {}  # of which the collector does not know
    while True:
        seen[f"{len(seen)}"] = f"{len(seen)}" * 5000
        yield len(seen)


def test_what_only_a_suspended_generator_holds_is_named_by_its_variable() -> None:
    for number in seen_texts():
        if number == 5:
            look = CloserLook(0, far=True)
        elif number == 15:
            (top, *_) = look.finish(10, 10_000.0)
            break
    assert str(top.held_by).startswith("local 'seen' of seen_texts (")
    assert top.source_line.startswith("seen[f")


def test_a_frozen_heap_hides_nothing() -> None:
    holder = Holder()
    gc.freeze()
    try:
        assert holder_of(holder.kept) == "Holder.kept"
    finally:
        gc.unfreeze()


class Imports(dict[int, Any]):
    """Like transformers' MODEL_MAPPING: whoever reads what it lists imports modules."""

    def _reads(self, *_: object) -> Any:
        raise ImportError

    values = items = keys = __iter__ = __reversed__ = __getitem__ = _reads  # type: ignore[assignment]


def test_a_dictionary_of_a_class_of_its_own_is_read_without_its_code() -> None:
    few, many = Imports(), Imports()
    dict.update(few, {0: Holder()})
    dict.update(many, {number: object() for number in range(1000)} | {1000: Holder()})
    walk = ReachableGraph.walk(budget_s=10.0)
    held = [dict.__getitem__(few, 0), dict.__getitem__(many, 1000)]
    positions = [number for number, node in enumerate(walk.nodes) if any(node is one for one in held)]
    assert [walk.way(at)[0] is kept for at, kept in zip(positions, (few, many), strict=True)] == [True, True]


def test_no_collection_takes_the_time_of_the_walk() -> None:
    during: list[str] = []

    def hear(phase: str, info: dict[str, int]) -> None:
        during.append(phase)

    thresholds = gc.get_threshold()
    gc.callbacks.append(hear)
    try:
        gc.set_threshold(1, 1, 1)
        during.clear()
        ReachableGraph.walk()
        in_walk = len(during)
        lists = [[] for _ in range(1000)]  # Python 3.14 may wait for some dozens
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(hear)
    assert in_walk <= 2, "one may begin before the walk has begun"
    assert len(during) > in_walk, f"the collector goes on after it, with {len(lists)} new objects"


def test_our_own_things_are_passed_over() -> None:
    ours = MemoryCallback()
    walk = ReachableGraph.walk(budget_s=10.0)
    assert not any(node is ours for node in walk.nodes)


# ---- a library's variables and hooks ----

LIBRARY = """
def advance(net, grow, look, steps):
    kwargs = OrderedDict(net=net)
    before = look(0)
    for step in range(steps):
        grow(step)
    return look(before)
"""


def test_variables_of_a_librarys_function_never_win_over_what_the_user_has(tmp_path: Any) -> None:
    """The library's loop holds the model in a variable, which is nearer than the user's attribute."""
    names: dict[str, Any] = {"OrderedDict": OrderedDict}
    exec(compile(LIBRARY, str(tmp_path / "site-packages" / "loop.py"), "exec"), names)
    holder: Any = Holder()
    holder.model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.ReLU())

    def grow(step: int) -> None:
        for layer in holder.model:
            rows = bytes(5_000)
            layer.register_forward_hook(lambda *_, rows=rows: None)

    def looked(before: Any) -> Any:
        walk = ReachableGraph.walk(budget_s=10.0)
        if not before:
            return look(walk, 0)
        found = merge_similar(grown(before, walk, 10), walk)
        return [suspect_of(one, walk) for one in found]

    top, *others = names["advance"](holder.model, grow, looked, 10)
    hooks = {one.held_by: one.bytes_per_step for one in [top, *others] if (one.kind, one.last) == ("hooks", False)}
    assert list(hooks) == ["Holder.model[...]._forward_hooks"]
    assert sum(hooks.values()) == pytest.approx(15_000, rel=0.2)
    assert not any("kwargs" in str(one.held_by) for one in [top, *others])


def test_what_only_a_librarys_function_holds_is_known_as_such(tmp_path: Any) -> None:
    names: dict[str, Any] = {}
    text = "def advance(ask):\n    kwargs = [[1]]\n    ask()\n"
    exec(compile(text, str(tmp_path / "site-packages" / "loop.py"), "exec"), names)
    mine: list[Any] = [[]]
    told = {}

    def ask() -> None:
        walk = ReachableGraph.walk(budget_s=10.0)
        for position, node in enumerate(walk.nodes):
            if node is mine or walk.path(position).startswith("local 'kwargs'"):
                told["mine" if node is mine else "kwargs"] = walk.is_librarys_variable(position)

    names["advance"](ask)
    assert told == {"mine": False, "kwargs": True}


def test_without_memory_for_a_list_of_all_objects_the_walk_is_made_all_the_same() -> None:
    many, kept = [[] for _ in range(2_000_000)], Holder()  # type: ignore[var-annotated]
    used, limits = (
        kib_fields(Path("/proc/self/status").read_bytes())[b"VmData"],
        resource.getrlimit(resource.RLIMIT_DATA),
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used + 8 * MIB, limits[1]))
    try:
        with pytest.raises(MemoryError):
            gc.get_objects()
        walk = ReachableGraph.walk(budget_s=10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    assert {id(kept), id(many)} <= walk.ids()
