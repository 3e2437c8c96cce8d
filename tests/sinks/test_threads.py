"""Many threads at the same moment: nothing is lost, and no two runs share a folder."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forgather_mem.engine.facts import run_folder
from tests.sinks.faults import new_sink, sample, steps_in
from tests.sinks.plain_run import PlainRun, begun

NUM_THREADS = 100


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], object]) -> None:
    begin = threading.Barrier(NUM_THREADS)

    def run(number: int) -> None:
        begin.wait()
        work(number)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(run, range(NUM_THREADS)))


@pytest.mark.parametrize("kind", ["tensorboard", "jsonl"])
def test_one_sink_takes_every_record_of_all_threads(kind: str, tmp_path: Path) -> None:
    sink = begun(new_sink(kind, tmp_path))
    at_once(lambda number: [sink.write(sample(3 * number + more)) for more in (1, 2, 3)])
    assert "slow writes" in (sink.problems() or "slow writes"), "of a busy disk alone something may be said"
    sink.end(PlainRun())
    assert sorted(steps_in(tmp_path, sink)) == list(range(1, 3 * NUM_THREADS + 1))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["tensorboard", "jsonl"])
def test_each_of_many_sinks_in_one_folder_gets_its_file(kind: str, tmp_path: Path) -> None:
    sinks = [new_sink(kind, tmp_path) for _ in range(NUM_THREADS)]

    def train(number: int) -> None:
        sinks[number].begin(PlainRun())
        sinks[number].write(sample(number + 1))

    at_once(train)
    told = [problem for sink in sinks if (problem := sink.problems())]
    assert [problem for problem in told if "slow writes" not in problem] == [], "of a busy disk something may be said"
    for sink in sinks:
        sink.end(PlainRun())
    assert sorted(steps_in(tmp_path, sinks[0])) == list(range(1, NUM_THREADS + 1))


def test_no_two_runs_of_one_second_have_one_folder(tmp_path: Path) -> None:
    folders: list[Path | None] = []
    at_once(lambda number: folders.append(run_folder(tmp_path, 0, f"folder/{number}")))
    assert len(set(folders)) == NUM_THREADS
