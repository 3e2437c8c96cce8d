import collections
import functools
import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forgather_mem.heap.owners import Owner, find_owners

pytestmark = pytest.mark.alone

HERE = sys.modules[__name__]
CACHE: dict[str, Any] = {}


class Trainer:
    """Somebody's class that keeps things."""

    registry: list[Any] = []  # noqa: RUF012


class Model:
    def forward(self) -> None: ...


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept: object) -> None:
        self.kept = kept


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    CACHE.clear()
    Trainer.registry.clear()


def kept_elsewhere(thing: object, **options: Any) -> list[Owner]:
    """Who holds the thing, besides the variables of functions that run (this one and the test)."""
    return [owner for owner in find_owners([thing], **options) if not owner.path.startswith("local ")]


def in_an_attribute(thing: object) -> str:
    trainer = Trainer()
    trainer.history = [{"logits": thing}]  # type: ignore[attr-defined]
    CACHE["trainer"] = trainer
    return "CACHE['trainer'].history[0]['logits']"


def in_a_slot(thing: object) -> str:
    CACHE["slotted"] = {5: collections.deque([0, Slotted(thing)])}
    return "CACHE['slotted'][5][1].kept"


def in_a_class(thing: object) -> str:
    Trainer.registry.append((1, thing))
    return "Trainer.registry[0][1]"


def in_a_partial(thing: object) -> str:
    CACHE["partial"] = functools.partial(print, sep=thing)
    return "CACHE['partial'].keywords['sep']"


def in_a_bound_method(thing: object) -> str:
    CACHE["hook"] = thing.forward  # type: ignore[attr-defined]
    return "CACHE['hook'].__self__"


@pytest.mark.parametrize("keep", [in_an_attribute, in_a_slot, in_a_class, in_a_partial, in_a_bound_method])
def test_the_path_leads_to_the_object(keep: Callable[[object], str]) -> None:
    model = Model()
    assert_found(model, keep(model))


def assert_found(model: object, expected: str) -> None:
    owners = kept_elsewhere(model, budget_s=30.0)
    assert len(owners) == 1
    path = owners[0].path.removeprefix(__name__ + ".")
    assert path == expected
    assert eval(path, vars(HERE)) is model


def in_a_cache(thing: object) -> Callable[[str], object]:
    @functools.lru_cache
    def load(name: str) -> object:
        return [thing]

    load("model")
    return load


def test_a_way_through_a_function_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Trainer()
    monkeypatch.setattr(Trainer, "load", in_a_cache(thing), raising=False)
    way = f"{__name__}.Trainer.load, cache of in_a_cache.<locals>.load[0]"
    assert any(owner.path.startswith(way) for owner in kept_elsewhere(thing))


def test_the_holder_is_the_last_object_with_a_name_people_know() -> None:
    model = Model()
    CACHE["a"] = {"deep": [in_an_attribute(model), CACHE["trainer"]]}
    assert kept_elsewhere(model)[0].holder == "Trainer.history[0]['logits']"


def test_each_direct_holder_is_named_once_and_the_shortest_way_comes_first() -> None:
    thing = Trainer()
    shared = [thing]
    CACHE["b"] = {"x": shared}
    CACHE["a"] = shared  # the same list on a shorter way
    CACHE["other"] = (0, [0, {"y": thing}])
    paths = [owner.path.removeprefix(f"{__name__}.") for owner in kept_elsewhere(thing)]
    assert paths[-1] == "CACHE['other'][1][1]['y']"
    assert len(paths) == 1  # the list is a variable of this function, too
    del shared
    paths = [owner.path.removeprefix(f"{__name__}.") for owner in kept_elsewhere(thing)]
    assert paths == ["CACHE['a'][0]", "CACHE['other'][1][1]['y']"]


def test_names_of_code_that_is_run_by_exec_are_names() -> None:
    names = {"__name__": "script", "find_owners": find_owners, "Trainer": Trainer}
    exec("kept = {'best': Trainer()}\nfound = find_owners([kept['best']])", names)
    assert [owner.path for owner in names["found"]] == ["script.kept['best']"]  # type: ignore[attr-defined]


def test_an_object_that_holds_itself_is_not_its_own_owner() -> None:
    thing = Trainer()
    thing.itself = thing  # type: ignore[attr-defined]
    thing.part = Trainer()  # type: ignore[attr-defined]
    thing.part.parent = thing  # type: ignore[attr-defined]
    assert kept_elsewhere(thing) == []
    assert kept_elsewhere(thing.part) == []  # type: ignore[attr-defined]


def test_holders_that_are_to_be_ignored_are() -> None:
    thing = Trainer()
    CACHE["list"] = [thing]
    assert len(kept_elsewhere(thing)) == 1
    assert kept_elsewhere(thing, ignore=[CACHE["list"]]) == []


def test_a_search_keeps_nothing_alive_and_leaves_no_snapshot_in_frames() -> None:
    def look() -> weakref.ref[Trainer]:
        thing = Trainer()
        find_owners([thing])
        del thing
        thing = Trainer()
        watched = weakref.ref(thing)
        find_owners([thing])
        thing = None  # type: ignore[assignment]
        return watched  # were a snapshot kept in this frame, it would still live here

    watched = look()
    assert watched() is None


def test_the_search_ends_when_its_time_is_up() -> None:
    thing = Trainer()
    chain: Any = thing
    for _ in range(20):
        chain = [chain]
    CACHE["chain"] = chain
    del chain
    began = time.perf_counter()
    found = find_owners([thing], budget_s=0.0)
    assert not found.complete
    assert not any("CACHE" in owner.path for owner in found)
    assert time.perf_counter() - began < 2.0
    assert kept_elsewhere(thing, budget_s=30.0)[0].path == f"{__name__}.CACHE['chain']" + "[0]" * 20


def test_the_path_leads_through_a_module_of_torch_also_where_the_collector_shows_nothing() -> None:
    import torch  # the last test: the others look through a tenth of the objects without it

    CACHE["net"] = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    model = CACHE["net"][1].thing = Model()
    gc.freeze()
    assert_found(model, "CACHE['net'][1].thing")
    gc.unfreeze()
