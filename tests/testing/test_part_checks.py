"""The public check of a probe or an action: the shipped ones pass, and each fault is found and named."""

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from forgather_mem import actions, probes
from forgather_mem.actions import Adaptive, ClearCache, Collect, TrimHost
from forgather_mem.diagnose.oom.watch import OutOfMemoryWatch
from forgather_mem.engine.ledger import BOOKED, Ledger
from forgather_mem.page import data, readings
from forgather_mem.probes.ranks import RankProbe
from forgather_mem.reporting import text
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.telemetry.report import Action
from forgather_mem.telemetry.rule import EachRun
from forgather_mem.testing import check_work
from forgather_mem.testing.part_checks import _BOOKS

PROBES = ("CleanupProbe", "DeviceProbe", "HostProbe", "PhaseProbe", "PythonProbe", "TensorProbe", "WorkerProbe")
WORKS: dict[str, Callable[[], Any]] = {
    **{name: getattr(probes, name) for name in PROBES},
    "RankProbe": RankProbe,
    "Collect": Collect,
    "ClearCache": ClearCache,
    "TrimHost": TrimHost,
    "Adaptive": lambda: Adaptive(Collect()),
    "OutOfMemoryWatch": lambda: EachRun(OutOfMemoryWatch),
    "a function": lambda: lambda moment, sample: {"mine/loss_len": 2},
}


def test_each_probe_and_action_is_tried_here_and_what_the_ledger_books_is_known() -> None:
    shipped = {name for module in (probes, actions) for name in module.__all__}
    classes = {name for name in shipped if name[0].isupper()}
    assert classes - {"HeapHold"} <= WORKS.keys(), "a line in WORKS"  # it is no work, but held by one
    page = (Path(__file__).parents[2] / "docs/api/parts.md").read_text()
    assert [name for name in classes if f".{name}\n" not in page] == []
    kinds = set(get_args(Action))
    assert kinds == BOOKED.keys() == text._ACTIONS.keys() == Ledger()._levels.keys() == {*_BOOKS} - {""}
    names = {name for pair in BOOKED.values() for name in pair}
    assert names <= {metric.name for metric in every_metric()} & readings._WANTED
    assert {name.partition("/")[0] for name in names} == {family for family, _ in data._ACTIONS}, "the page shows it"


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_every_shipped_work_passes(name: str) -> None:
    model = torch.nn.Linear(2, 2)
    check_work(WORKS[name], objects={"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})


def probe(answer: Callable[[Moment, Sample], Any], **members: Any) -> Any:
    """A probe with this answer and these members."""
    members = {name: staticmethod(member) if callable(member) else member for name, member in members.items()}
    return type("MyProbe", (), {"__call__": lambda self, moment, sample: answer(moment, sample), **members})


def changes_the_sample(moment: Moment, sample: Sample) -> Mapping[str, float]:
    sample.values["mine/x"] = 1.0  # type: ignore[index]
    return {}


def needs_a_model(moment: Moment, sample: Sample) -> Mapping[str, float]:
    return {"mine/parameters": len(list(moment.objects["model"].parameters()))}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Collect, r"make_work\(\) gave the class Collect: return Collect\(\)"),
        (object, r"object can't be called"),
        (probe(lambda *_: None), r"MyProbe gave None at the event 'train_begin' of step 0: return numbers by name"),
        (probe(lambda *_: {"mine/x": float("nan")}), r"MyProbe gave .*nan.*finite numbers by name"),
        (probe(lambda *_: {"mine/x": "1 GiB"}), r"MyProbe gave .*1 GiB.*finite numbers by name"),
        (lambda: changes_the_sample, r"changes_the_sample has changed the sample"),
        (lambda: needs_a_model, r"needs_a_model raised KeyError\('model'\).*moment.objects is empty"),
        (probe(dict, books="sweep"), r"MyProbe.books is 'sweep': the ledger knows"),
        (probe(dict, reading=["x"]), r"MyProbe.reading can't be compared"),
        (probe(lambda *_: {}, begin=lambda run: gc.disable()), r"MyProbe leaves automatic garbage collection changed"),
        (probe(lambda *_: {}, begin=lambda run: os.dup(1)), r"MyProbe leaves the number of open files changed"),
        (probe(lambda *_: {}, end=lambda run: 1 / 0), r"MyProbe raised ZeroDivisionError.*at end"),
    ],
)
def test_a_fault_of_a_work_is_named(make: Any, message: str) -> None:
    try:
        with pytest.raises(AssertionError, match=message):
            check_work(make)
    finally:
        gc.enable()
