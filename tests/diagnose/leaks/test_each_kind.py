"""Each row of the table of holder kinds is told of something that grows so."""

import builtins
import functools
import importlib
import itertools
import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forgather_mem.diagnose.leaks.holder_kinds import KINDS, Held, HolderKind
from tests.heap.test_reachable import suspects_after
from tests.programs import ROOT

pytestmark = pytest.mark.alone(forked=True)

# Told by other means than what a holder is: a walk of its own, the collector, native memory, the workers.
BY_OTHER_MEANS = {"chain", "cycle", "made", "workers", "copied pages"}


class Figure:
    """A plotting library's, by the module of its class."""

    def __init__(self) -> None:
        self.canvas = bytes(5000)


Figure.__module__ = "matplotlib.figure"


@functools.cache
def cached(step: int) -> bytes:
    return bytes(5000)


class Grows:
    """One thing of each kind."""

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)
        self.loss = self.layer(torch.zeros(3)).sum()
        self.batches = itertools.cycle(torch.zeros(5000) for _ in range(1000))
        self.front, self.behind = itertools.tee((torch.zeros(5000), 0) for _ in range(1000))
        list(itertools.islice(self.front, 100))
        self.queue: queue.Queue[bytes] = queue.Queue()
        self.simple: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.text = bytearray(5000)
        self.by_step: dict[int, bytes] = {}
        self.kept: dict[str, list[Any]] = {}

    def keep(self, name: str, thing: object) -> None:
        self.kept.setdefault(name, []).append(thing)


GROWTH: dict[str, Callable[[Grows, int], object]] = {
    "graph": lambda it, step: setattr(it, "loss", it.loss + it.layer(torch.zeros(3)).sum()),
    "cycle iterator": lambda it, step: next(it.batches),
    "tee": lambda it, step: next(it.front),
    "hooks": lambda it, step: it.layer.register_forward_hook(lambda *_, kept=bytes(5000): None),
    "lru_cache": lambda it, step: cached(step),
    "param_groups": lambda it, step: it.optimizer.add_param_group({"params": [torch.zeros(5000)]}),
    "optimizer state": lambda it, step: it.optimizer.state.update({torch.zeros(1): {"moment": torch.zeros(5000)}}),
    "queue": lambda it, step: it.queue.put(bytes(5000)),
    "simple queue": lambda it, step: it.simple.put(bytes(5000)),
    "exceptions": lambda it, step: it.keep("errors", ValueError(bytes(5000))),
    "threads": lambda it, step: it.keep("threads", threading.Thread(args=(bytes(5000),))),
    "device": lambda it, step: it.keep("on a device", torch.zeros(5000, device="meta")),
    "view": lambda it, step: it.keep("views", torch.zeros(5000)[:2]),
    "tensor": lambda it, step: it.keep("tensors", torch.zeros(5000)),
    "log records": lambda it, step: it.keep("records", logging.makeLogRecord({"msg": "a" * (5000 + step)})),
    "figures": lambda it, step: it.keep("figures", Figure()),
    "closure": lambda it, step: it.keep("functions", functools.partial(print, bytes(5000))),
    "size": lambda it, step: it.text.extend(bytes(5000)),
    "dict": lambda it, step: it.by_step.update({step: bytes(5000)}),
    "list": lambda it, step: it.keep("texts", bytes(5000)),
}


def test_each_kind_has_a_row_in_the_docs() -> None:
    table = (ROOT / "docs" / "leaks.md").read_text(encoding="utf-8").partition("| kind | what grows |")[2]
    cells = re.findall(r"^\| (`.*?) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert {name for cell in cells for name in re.findall("`(.+?)`", cell)} == {*KINDS, "native"}


def test_each_kind_of_holder_is_told_of_something_that_grows_so() -> None:
    assert set(KINDS) == GROWTH.keys() | BY_OTHER_MEANS, "a new kind is shown to be told here"
    every = Grows()

    def grow(step: int) -> None:
        for name in GROWTH:
            GROWTH[name](every, step)

    grow(-1)  # what is empty has no holder yet
    told = {one.kind: one.held_by for one in suspects_after(grow, most=100)}
    assert set(GROWTH) <= set(told), set(GROWTH) - set(told)
    assert str(told["tee"]).endswith("behind")


# Where the classes are whose objects a kind may be told of
MODULES = (
    "array", "asyncio", "collections", "concurrent.futures", "contextlib", "functools", "io", "logging.handlers",
    "multiprocessing.queues", "queue", "sched", "threading", "torch", "torch.optim", "traceback", "weakref",
)  # fmt: skip
CALLED = re.compile(r"(?<![\w.])(?:(\w+)\.|\.)?([a-z]\w*)\((?!\w+=)")


def classes_of(kind: HolderKind) -> Iterator[type]:
    """Each class whose objects it takes, as what has grown or as an item, where any other object is not taken."""

    def takes(it: object) -> bool:
        held = (Held(SimpleNamespace(kind="items", samples=[it]), it, f"It.{name}", it) for name in {*names, "x"})  # type: ignore[arg-type]
        return kind.item(it) or any(map(kind.holder, held))

    every = (one for name in MODULES for one in vars(importlib.import_module(name)).values())
    for cls in {one for one in every if isinstance(one, type)}:
        with suppress(Exception):
            made = cls
            with suppress(TypeError):
                made = type("It", (cls,), {"__del__": lambda it: None})
            functions = [function for base in cls.__mro__ for function in vars(base).values()]
            names = {name for one in functions for name in getattr(getattr(one, "__code__", None), "co_names", ())}
            if takes(made.__new__(made)) and not takes(object()):
                yield cls


def test_each_method_that_a_cure_calls_is_there_in_each_class_of_its_kind() -> None:
    found = {kind.name: [*classes_of(kind)] for kind in KINDS.values()}
    assert {"queue", "simple queue", "threads"} <= {kind for kind, classes in found.items() if classes}
    lacking = [
        f"{kind}: {cls.__name__}.{method}()"
        for kind, classes in found.items()
        for owner, method in CALLED.findall(KINDS[kind].cure)
        for cls in classes
        if not hasattr(importlib.import_module(owner) if owner in MODULES else cls, method)
        and not hasattr(builtins, method)
    ]
    assert lacking == []
