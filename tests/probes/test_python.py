import gc
import time
from collections.abc import Callable

import pytest

from forgather_mem.engine.run import Run
from forgather_mem.probes import PythonProbe
from forgather_mem.telemetry.records import Work

pytestmark = pytest.mark.usefixtures("uncollected")

Read = Callable[..., dict[str, float]]


@pytest.fixture
def probe(run: Run) -> Work:
    return PythonProbe().begin(run)


def test_full_collections_are_counted_and_younger_ones_are_not(probe: Work, read: Read) -> None:
    before = gc.get_stats()[2]["collections"]
    for generation in (0, 1, 2, 2):
        gc.collect(generation)
    assert read(probe)["gc/collections"] == gc.get_stats()[2]["collections"] - before == 2


def test_pauses_agree_with_a_clock_around_the_collections(probe: Work, read: Read) -> None:
    garbage = [[] for _ in range(200_000)]
    measured = []
    for _ in range(2):
        began_s = time.perf_counter()
        gc.collect()
        measured.append(time.perf_counter() - began_s)
    values = read(probe)
    del garbage
    assert 0.1 * sum(measured) < values["gc/pause_total_s"] <= sum(measured)
    assert 0.1 * max(measured) < values["gc/pause_max_s"] <= max(measured)


def test_each_call_gives_the_pauses_since_the_last_one(probe: Work, read: Read) -> None:
    gc.collect()
    first, second = read(probe), read(probe)
    gc.collect()
    third = read(probe)
    assert first["gc/pause_s"] == first["gc/pause_total_s"] > 0
    assert second["gc/pause_s"] == 0
    assert third["gc/pause_total_s"] == pytest.approx(first["gc/pause_s"] + third["gc/pause_s"])


@pytest.mark.usefixtures("unfrozen")
def test_tracked_objects_are_counted_rarely(run: Run, read: Read) -> None:
    probe = PythonProbe(tracked_every_s=3600.0, budget_frac=0.1).begin(run)
    assert "gc/tracked" not in read(probe)
    time.sleep(0.5)  # a count takes some 40 ms
    counted = read(probe)["gc/tracked"]
    assert counted == pytest.approx(len(gc.get_objects()), abs=2000)
    assert "gc/tracked" not in read(probe)


def test_frozen_objects_are_tracked_too(run: Run, read: Read) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        probe = PythonProbe(tracked_every_s=0.001).begin(run)
        time.sleep(0.002)
        counted = read(probe)["gc/tracked"]
        assert frozen > 10_000
        assert counted == pytest.approx(frozen, rel=0.05)
    finally:
        gc.unfreeze()


def test_only_our_own_callback_is_taken_back(run: Run) -> None:
    def of_somebody_else(phase: str, info: dict[str, int]) -> None:
        pass

    before = list(gc.callbacks)
    first, other = PythonProbe(), Run(run.facts)
    works = [first.begin(run)]
    gc.callbacks.append(of_somebody_else)
    works += [PythonProbe(tracked_every_s=5.0).begin(run), first.begin(other)]  # one probe in two trainings at once
    assert len(gc.callbacks) == len(before) + 4
    other.close()
    assert len(gc.callbacks) == len(before) + 3
    run.close()
    assert gc.callbacks == [*before, of_somebody_else]
    gc.callbacks.remove(of_somebody_else)


def test_a_list_that_somebody_emptied_does_no_harm(run: Run) -> None:
    before = list(gc.callbacks)
    PythonProbe().begin(run)
    gc.callbacks.clear()
    run.close()
    assert gc.callbacks == []
    gc.callbacks[:] = before


def test_a_collection_that_runs_while_we_begin_is_not_counted(run: Run, read: Read) -> None:
    begun = []

    class BeginsWhenFreed:
        def __del__(self) -> None:
            begun.append(PythonProbe().begin(run))

    cycle = [BeginsWhenFreed()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert read(begun[0])["gc/pause_total_s"] < 1e-4
