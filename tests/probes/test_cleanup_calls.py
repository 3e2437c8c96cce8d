"""Who collects and clears: lines, counts, bytes; nothing of it stays when the training is over."""

import _thread
import functools
import gc
import inspect
import itertools
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.actions.clear import clear_cache
from forgather_mem.probes.cleanup_calls import CleanupProbe
from forgather_mem.telemetry.records import Finding
from forgather_mem.units import MIB
from tests.programs import printed_by
from tests.reclaim.things import Cycle
from tests.reporting.report_fixtures import built, text_of
from tests.simulated_device import SimulatedDevice

HERE = "tests/probes/test_cleanup_calls.py"


class Told:
    """What a run hears."""

    step = 3

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def emit(self, finding: Finding) -> None:
        self.findings.append(finding)

    def at_close(self, call: Callable[[], object]) -> None:
        self.close = call

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self.findings[-1].data["calls"]) if self.findings else []


@contextmanager
def counting() -> Iterator[Told]:
    told = Told()
    CleanupProbe().begin(told)  # type: ignore[arg-type]
    try:
        yield told
    finally:
        told.close()


def line_of(function: Any, offset: int) -> int:
    return int(function.__code__.co_firstlineno) + offset


def collect_with_garbage() -> None:
    Cycle(24)
    gc.collect()


def collect_some(times: int) -> None:
    for _ in range(times):
        gc.collect(0)


@pytest.fixture
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)


@pytest.mark.usefixtures("in_the_root")
def test_each_line_that_collects_has_its_row_with_calls_and_freed_memory() -> None:
    gc.collect()
    with counting() as told:
        for _ in range(2):
            collect_with_garbage()
        collect_some(5)
    rows = {row["line"]: row for row in told.rows}
    big, small = rows[line_of(collect_with_garbage, 2)], rows[line_of(collect_some, 2)]
    assert {row["file"] for row in rows.values()} == {HERE}
    assert {row["whose"] for row in rows.values()} == {"user"}
    assert {row["what"] for row in rows.values()} == {"gc.collect"}
    assert (big["calls"], small["calls"], len(rows)) == (2, 5, 2)
    assert 44 * MIB < big["freed_bytes"] < 60 * MIB
    assert big["seconds"] > small["seconds"] > 0


def test_collections_that_python_starts_by_itself_are_not_counted() -> None:
    threshold, before = gc.get_threshold(), gc.get_stats()[2]["collections"]
    try:
        gc.set_threshold(50, 2, 2)
        with counting() as told:
            kept = [[number] for number in range(20_000)]
            gc.collect()
    finally:
        gc.set_threshold(*threshold)
    assert len(kept) == 20_000
    assert gc.get_stats()[2]["collections"] > before + 1
    assert [row["calls"] for row in told.rows] == [1]


def test_a_call_is_counted_however_the_function_is_reached_and_once_by_two_that_count() -> None:
    with counting() as outer, counting() as inner:
        functools.partial(gc.collect, 1)()
        getattr(gc, "collect")()  # noqa: B009
    for told in (outer, inner):
        assert [(row["file"][-len(HERE) :], row["calls"]) for row in told.rows] == [(HERE, 1), (HERE, 1)]


def test_a_collection_gives_what_it_gives_alone_and_its_function_looks_the_same() -> None:
    function = gc.collect
    with counting():
        assert inspect.signature(gc.collect) == inspect.signature(function)
        assert (gc.collect.__name__, gc.collect.__doc__) == ("collect", function.__doc__)
        assert pickle.loads(pickle.dumps(gc.collect)) is gc.collect
        gc.collect()
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect(generation=2) == 1
        with pytest.raises(ValueError, match="invalid generation"):
            gc.collect(7)
    assert gc.collect is function


def test_a_handler_that_ends_the_script_during_a_collection_leaves_no_trace_of_us() -> None:
    def handler(number: int, frame: object) -> None:
        sys.exit(7)

    class Sends:
        """Sends the signal at the end of a collection, in C alone: the handler runs when the collector has returned."""

        stop = property(functools.partial(next, map(_thread.interrupt_main, itertools.repeat(signal.SIGUSR1))))

    sends = functools.partial(getattr, Sends())

    def tracebacks() -> list[str]:
        gc.callbacks.append(sends)
        try:
            gc.collect()
        except SystemExit as error:
            return [f"{Path(one.filename).name}:{one.name}" for one in traceback.extract_tb(error.__traceback__)]
        finally:
            gc.callbacks.remove(sends)
        raise AssertionError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        alone = tracebacks()
        with counting() as told:
            counted = tracebacks()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert alone == counted
    assert [row["calls"] for row in told.rows] == [1]


def test_our_own_calls_are_ours_and_a_librarys_are_the_librarys(tmp_path: Path) -> None:
    from forgather_mem.actions.collect import collect

    package = tmp_path / "site-packages" / "greedy"
    package.mkdir(parents=True)
    (package / "memory.py").write_text("import gc\ndef tidy():\n    gc.collect()\n")
    library: dict[str, Any] = {}
    code = (package / "memory.py").read_text()
    exec(compile(code, str(package / "memory.py"), "exec"), library)
    with counting() as told:
        collect()
        library["tidy"]()
    places = {(row["file"], row["whose"]) for row in told.rows}
    assert places == {("forgather_mem/actions/collect.py", "us"), ("greedy/memory.py", "library")}


def test_clears_of_the_device_cache_are_counted_with_what_they_gave_back(device: SimulatedDevice) -> None:
    device.hold(500)
    device.hold(100)
    with counting() as told:
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        device.hold(600)
        device.hold(200)
        assert clear_cache()["cache/freed_bytes"] == 400 * MIB
    by_owner = {row["whose"]: row for row in told.rows}
    assert {row["what"] for row in told.rows} == {"torch.cuda.empty_cache"}
    assert sum(row["freed_bytes"] for row in told.rows if row["whose"] == "user") == 400 * MIB
    assert sum(row["calls"] for row in told.rows if row["whose"] == "user") == 2
    assert by_owner["us"]["file"] == "forgather_mem/actions/clear.py"
    assert by_owner["us"]["freed_bytes"] == 400 * MIB


@pytest.mark.fresh
def test_everything_is_as_before_when_the_training_is_over() -> None:
    functions = [torch.cuda.empty_cache, torch.cuda.memory.empty_cache, torch.mps.empty_cache]
    callbacks = list(gc.callbacks)
    with counting():
        assert torch.cuda.empty_cache is not functions[0]
        assert torch.cuda.empty_cache is torch.cuda.memory.empty_cache
        assert torch.cuda.empty_cache.__doc__ == functions[0].__doc__
        assert pickle.loads(pickle.dumps(torch.cuda.empty_cache)) is torch.cuda.empty_cache
        kept = torch.cuda.empty_cache
    assert [torch.cuda.empty_cache, torch.cuda.memory.empty_cache, torch.mps.empty_cache] == functions
    assert gc.callbacks == callbacks
    kept()  # somebody has imported it meanwhile: it works on, uncounted


def test_what_somebody_else_has_put_there_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs() -> None: ...

    before = torch.cuda.empty_cache
    with counting():
        torch.cuda.empty_cache = theirs
        gc.callbacks.clear()
    assert torch.cuda.empty_cache is theirs
    torch.cuda.empty_cache = before


def test_two_trainings_that_end_in_the_order_they_began_leave_nothing_behind() -> None:
    before = torch.cuda.empty_cache
    first, second = Told(), Told()
    for told in (first, second):
        CleanupProbe().begin(told)  # type: ignore[arg-type]
    first.close()
    second.close()
    assert torch.cuda.empty_cache is before


def test_an_error_of_the_function_passes_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    with counting() as told, pytest.raises(RuntimeError, match="the device is gone"):
        torch.cuda.empty_cache()
    assert [row["calls"] for row in told.rows] == [1]


def test_nothing_is_imported_for_it() -> None:
    code = """
    import sys
    from forgather_mem.probes.cleanup_calls import CleanupProbe

    class Run:
        step = 0
        def emit(self, finding):
            print(len(finding.data["calls"]), "torch" in sys.modules)
        def at_close(self, call):
            self.close = call

    import gc
    run = Run()
    CleanupProbe().begin(run)
    gc.collect()
    run.close()
    """
    assert printed_by(code) == "1 False\n"


def test_a_trainings_report_names_the_lines(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    from forgather_mem.callbacks import MemoryCallback
    from forgather_mem.formats.jsonl import LogReader, log_files
    from tests.training import make_trainer

    class Worried(TrainerCallback):
        def on_step_end(self, *args: Any, **objects: Any) -> None:
            for _ in range(3):
                gc.collect()

    callback = MemoryCallback(strict=True)
    before = list(gc.callbacks)
    make_trainer(tmp_path, [callback, Worried()], max_steps=12).train()
    assert gc.callbacks == before
    report = built(callback.summary)
    (mine,) = (row for row in report["cleanup_calls"] if row["whose"] == "user")
    assert (mine["what"], mine["calls"]) == ("gc.collect", 36)
    assert mine["line"] == line_of(Worried.on_step_end, 2)
    report["run"]["wall_s"] = 50 * mine["seconds"]
    flat = " ".join(text_of(report).split())
    assert f":{mine['line']}: 36 calls," in flat
    assert "(2.0 % of the run)" in flat
    (files,) = log_files(report["run"]["folder"]).values()
    told = [record for record in LogReader(*files) if isinstance(record, Finding) and record.kind == "cleanup_calls"]
    # while it goes on only when the calls have doubled, so that a killed run has told most of them
    assert [sum(row["calls"] for row in finding.data["calls"]) for finding in told] == sorted(
        sum(row["calls"] for row in finding.data["calls"]) for finding in told
    )
    assert 2 <= len(told) <= 7
