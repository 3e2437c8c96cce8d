"""What all tests share: tests that need a process of their own get one."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest.doctest import DoctestModule

# Tests fork: with threads of OpenMP, which torch starts, the child would wait for ever
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Of the shell that runs the tests, which are in folders of their own
os.environ.pop("PWD", None)
os.environ.pop("TENSORBOARD_LOGGING_DIR", None)

from forgather_mem.config.rendering import stranger
from forgather_mem.telemetry import run_session
from tests.alone import REPORTS, AloneFiles, is_alone, write
from tests.fresh import IN_CHILD, FreshProcesses, has_autograd_threads
from tests.frozen_heap import forget, freeze
from tests.programs import no_collections
from tests.simulated_freezing import simulated_freezing
from tests.warm_renderer import REAL_START, WarmRenderer

# Programs that tests start, not tests
collect_ignore = [
    "run_child.py", "launch/train.py", "launch/loop.py", "launch/ranks_die.py", "launch/seen.py", "quick_start",
]  # fmt: skip

_PROCESSES = FreshProcesses()
_ALONE = AloneFiles(_PROCESSES)
_RENDERER = WarmRenderer()
# The same few examples in each run of `make test`; HYPOTHESIS_PROFILE=random looks for new ones, as `make soak` does.
# How long an example takes, and how fast it is made, is the machine's.
hypothesis.settings.register_profile(
    "same", derandomize=True, max_examples=30, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("random", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
# CPU seconds of one test. None takes more than 12 on an idle machine; a busy one makes that up to twice as much. A
# slower machine sets CPU_LIMIT_S.
_LIMIT_S = float(os.environ.get("CPU_LIMIT_S", "20"))
# These may take twice as much: they start real launchers, or several processes that import torch and transformers
_DEAR = (
    "tests/launch/test_trainings.py::test_under_torchrun_the_rank_that_was_killed_is_named_with_its_last_step_and_phase",
    "tests/test_docs.py::test_a_page_runs_as_it_stands[recipes/axolotl.md]",
)
_SHOWN = int(os.environ.get("SLOWEST", "15"))
_QUICK_START = str(Path(__file__).parent / "quick_start")


def pytest_configure(config: pytest.Config) -> None:
    """What a shell ignores for its background jobs would be ignored by the children of tests, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()  # collections among imports and thousands of tests take a third of the time until the first test
    # What begins Pythons of tests quickly is not for pytest's own, in which tests look at imports and collections
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "") != "sitecustomize"]
    if _QUICK_START not in os.environ.get("PYTHONPATH", ""):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_QUICK_START, os.environ.get("PYTHONPATH"))))
    forget()
    if not config.option.collectonly:
        _RENDERER.start()
        if config.getoption("numprocesses", None):
            _PROCESSES.start()  # one for all workers


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """No doctests are looked for in tests, which takes a fourth of the time until the first test."""
    found: list[pytest.Collector] = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A file marked `alone` looks through the heap, of which pytest has ten times as much as these tests need."""
    if os.environ.get(IN_CHILD) or not is_alone(item):
        return None
    _ALONE.replay(item)
    item.session._setupstate.teardown_exact(nextitem)  # folders' fixtures, which the test before has left to this one
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if os.environ.get(REPORTS):  # in the process of a file that is alone
        write(report, os.environ[REPORTS])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test marked `fresh` looks at this process's heap or peak, which earlier tests have shaped: it runs alone.

    What was imported is frozen there, as in the files of the other tests: one that looks at it asks for `unfrozen`.
    """
    if os.environ.get(IN_CHILD):
        return None
    plans_after_backward = pyfuncitem.get_closest_marker("plans") is not None and has_autograd_threads()
    if pyfuncitem.get_closest_marker("fresh") is None and not plans_after_backward:
        return None
    code, printed = _PROCESSES.run([pyfuncitem.nodeid])
    if code:
        pytest.fail(f"in a process of its own:\n{printed}", pytrace=False)
    return True


def _cpu_s() -> float:
    """CPU seconds of this process, of the children that have ended, and of the tests that ran in fresh processes."""
    return sum(os.times()[:4]) + _PROCESSES.cpu_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test's CPU seconds are noted, and bounded."""
    before = _cpu_s()
    try:
        yield
    finally:
        used = _cpu_s() - before
        item.user_properties.append(("cpu_s", used))
    limit = 2 * _LIMIT_S if item.nodeid in _DEAR else _LIMIT_S
    if used > limit and item.get_closest_marker("soak") is None:
        pytest.fail(
            f"it took {used:.0f} CPU seconds, more than {limit:.0f}: share what it starts, use tests/forked.py where "
            "the start of Python is not what is tested, mark it `slow` or its wider part `soak`, or add it to _DEAR "
            "in tests/conftest.py and say why",
            pytrace=False,
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The tests that cost most."""
    reports = [one for one in terminalreporter.getreports("passed") if one.when == "call"]
    costs = sorted(((dict(one.user_properties).get("cpu_s", 0.0), one.nodeid) for one in reports), reverse=True)
    total = sum(cost for cost, _ in costs)
    terminalreporter.section(f"CPU seconds: {total:.0f} in {len(costs)} tests, the most in")
    for cost, name in costs[:_SHOWN]:
        terminalreporter.line(f"{cost:6.1f} {name}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A `SimulatedDevice`, which torch answers for as long as the test lasts."""
    from tests.simulated_device import simulated_device

    with simulated_device(monkeypatch) as simulated:
        yield simulated


class _Frozen:
    """What earlier tests and the imports have left is out of the collector's sight, from file to file.

    Looking through it takes most of a tiny training's time: transformers and Trainer collect several times in each.
    """

    file = ""

    @classmethod
    def again(cls, file: str) -> None:
        if file != cls.file and (os.environ.get(REPORTS) or not os.environ.get(IN_CHILD)):
            cls.file = file
            gc.collect()
            freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        _skip_without_device()
    _Frozen.again(item.nodeid.partition("::")[0])


def _skip_without_device() -> None:
    import torch  # a test without the marker may be one that imports no torch

    if not torch.cuda.is_available():
        pytest.skip("needs an accelerator; `make device` runs it on a machine that has one")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that has begun."""
    monkeypatch.setenv(run_session.FOLDER, str(tmp_path))
    run_session.make_notes(str(tmp_path))
    return tmp_path


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """For a test of what freezing does to objects, or of a whole heap: nothing is frozen. Collections take long."""
    gc.unfreeze()
    yield
    freeze()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """For a test of who freezes and unfreezes: to our code nothing is frozen when it begins."""
    with simulated_freezing():
        yield


def pytest_sessionfinish() -> None:
    """Pytest's last collections look at what the last tests have left, not at all that was imported."""
    if not os.environ.get(IN_CHILD):
        gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    _PROCESSES.close()
    _RENDERER.close()


@pytest.fixture
def real_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a stranger's template is started, and imports what it needs."""
    monkeypatch.setattr(stranger, "_START", REAL_START)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For what people run in a folder of theirs: the module of our examples is there, and goes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "examples"))
    monkeypatch.setenv("FORGATHER_MEM_STRICT", "1")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_module"]:
        del sys.modules[name]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Only an explicit collection collects."""
    with no_collections():
        yield


@pytest.fixture
def collector_of_its_own() -> Iterator[None]:
    """No function of other tests' libraries is called by the collector meanwhile."""
    others, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = others
