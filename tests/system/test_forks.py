"""A child that a script forks in a watched training: nothing of ours runs in it, and it may train on its own."""

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem import attach, load_callbacks
from forgather_mem.callbacks import JsonLogger, MemoryCallback, OOMReporter, TBMemoryLogger
from forgather_mem.engine.run_of import run_of
from forgather_mem.sinks import BlackBoxSink, ConsoleSink, JsonlSink
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.engine.test_closing import open_files
from tests.fresh import has_autograd_threads
from tests.launch.commands import report_in
from tests.training import STAYS, AtStep, make_trainer, ours_in
from tests.ways_to_train import by_loop, by_trainer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads don't come along when a process forks, and a child would wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Calls:
    """A work and a sink that note in a file, with their process's number, that they were called."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, moment: Any, sample: Any) -> dict[str, float]:
        return self._note("read")

    def write(self, sample: Any) -> None:
        self._note("write")

    def tell(self, finding: Any) -> None:
        self._note("tell")

    def begin(self, run: Any) -> None:
        self._note("begin")

    def end(self, run: Any) -> None:
        self._note("end")

    def problems(self) -> None:
        self._note("problems")

    def _note(self, what: str) -> dict[str, float]:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {what}\n")
        return {"mine/count": 1.0}


class Forks(TrainerCallback):
    """Forks in step 2; the child does `then`, the parent waits for it and goes on."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self.status: int | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and self.status is None:
            pid = os.fork()
            if not pid:
                self.status = -1
                self.then()
                return
            self.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exits() -> None:
    sys.exit(7)


def fails() -> None:
    raise RuntimeError("in the child")


def goes_on() -> None: ...


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_a_process(do: Callable[[], None]) -> int:
    """What a script does that is not ours to end: in a forked child, which ends as Python ends a script."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            do()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException as error:  # as at the end of a script
            sys.last_value = error
            traceback.print_exc()
        finally:
            import atexit

            atexit._run_exitfuncs()  # what Py_Finalize does after `sys.exit` and after an error
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def callbacks_of(folder: Path, calls: Calls) -> list[TrainerCallback]:
    ours = MemoryCallback([Rule(Every(steps=1), [calls])], [JsonlSink(), BlackBoxSink(), ConsoleSink(1), calls])
    return [*load_callbacks("callbacks/watch.yaml"), TBMemoryLogger(logging_dir=folder / "tb"), JsonLogger(), ours]


@pytest.fixture
def gradients_after_forks() -> None:
    """For a test that trains, and trains in a forked child of that."""
    torch.ones(1, requires_grad=True).sum().backward()
    if has_autograd_threads():
        pytest.skip("with threads for gradients (a device, or Debian's torch) torch computes none in a forked child")


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_trainer, by_loop])
@pytest.mark.parametrize(("then", "code"), [(exits, 7), (fails, 1), (goes_on, 0)])
def test_a_forked_child_of_a_training_writes_nothing_of_the_parents(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    way: Any,
    then: Callable[[], None],
    code: int,
) -> None:
    """Its parent's process, which the test sees from outside, is a child of this one."""
    if way is by_trainer:
        request.getfixturevalue("gradients_after_forks")
    calls, told = tmp_path / "calls", tmp_path / "told"

    def script() -> None:
        parent, before = os.getpid(), {}

        def look_and_then() -> None:
            before.update(files_of(tmp_path / "out"))
            then()

        forks = Forks(look_and_then)
        owner, train = way(tmp_path / "out", [*callbacks_of(tmp_path / "out", Calls(calls)), forks])
        try:
            train()
        finally:
            if os.getpid() != parent:
                changed = sorted(name for name, _ in set(files_of(tmp_path / "out").items()) ^ set(before.items()))
                (tmp_path / "changed").write_text("\n".join(changed))
        if os.getpid() == parent:
            told.write_text(f"{parent} {forks.status} {run_of(owner.state).summary.facts.end}")

    assert in_a_process(script) == 0
    parent, status, end = told.read_text().split()
    assert (status, end) == (str(code), "finished")
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {parent}
    assert (tmp_path / "changed").read_text() == ""
    assert report_in(tmp_path / "out")["steps"] == 3
    said = capfd.readouterr().err
    assert [said.count(f"forgather-mem: step {step}: host") for step in (1, 2, 3)] == [1, 1, 1]


def trained(folder: Path) -> str:
    """A training of its own, as the child's, told in one line."""
    trainer = make_trainer(folder, max_steps=3)
    handle = attach(trainer)
    trainer.train()
    report = handle.report()
    num_reports = len(list(folder.rglob("report.json")))
    return f"{report['steps']} {report['run']['end']} {num_reports} {wrapped(trainer)}"


def wrapped(trainer: Any) -> list[str]:
    return ours_in(trainer, trainer.callback_handler, trainer.accelerator)


FRESH = f"3 finished 1 {sorted(STAYS)}"


@pytest.mark.slow
@pytest.mark.usefixtures("gradients_after_forks")
@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_forked_child_trains_on_its_own_as_a_fresh_process(tmp_path: Path, how: str) -> None:
    def child() -> None:
        (tmp_path / "told").write_text(trained(tmp_path / "child"))

    def then() -> None:
        child()
        os._exit(0)

    def starts() -> None:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()

    forks = Forks(then) if how == "fork" else AtStep(2, starts)
    trainer = make_trainer(tmp_path / "out", [*callbacks_of(tmp_path / "out", Calls(tmp_path / "calls")), forks])
    trainer.train()
    assert (tmp_path / "told").read_text() == FRESH
    run = run_of(trainer.state)
    assert (run.summary.facts.end, run.summary.steps) == ("finished", 6)
    assert open_files(tmp_path) == set()


@pytest.mark.usefixtures("gradients_after_forks")
def test_the_same_trainer_trains_again_in_a_child_that_was_forked_in_its_training(tmp_path: Path) -> None:
    callbacks = callbacks_of(tmp_path, Calls(tmp_path / "calls"))

    class Leaves(Exception): ...

    def leaves() -> None:
        raise Leaves

    forks = Forks(leaves)
    trainer = make_trainer(tmp_path / "out", [*callbacks, forks], max_steps=4)
    before = wrapped(trainer)

    def script() -> None:
        parent = os.getpid()
        with contextlib.suppress(Leaves):
            trainer.train()
        if os.getpid() != parent:
            trainer.train()
            run = run_of(trainer.state)
            phases = sorted(name for name in run.summary.spans if name.startswith("phase/host/forward"))
            told = (run.summary.facts.end, run.summary.steps, wrapped(trainer) == before, bool(phases))
            (tmp_path / "told").write_text(repr(told))

    assert in_a_process(script) == 0
    assert (tmp_path / "told").read_text() == repr(("finished", 4, True, True))


@pytest.mark.slow
def test_a_child_forked_after_a_training_ran_out_of_memory_does_not_tell_of_it(tmp_path: Path) -> None:
    def fails_of_memory() -> None:
        raise MemoryError

    def script() -> None:
        reporter = OOMReporter()
        trainer = make_trainer(tmp_path, [reporter, AtStep(1, MemoryError())])
        with contextlib.suppress(MemoryError):
            trainer.train()
        with (tmp_path / "said").open("w") as said:
            os.dup2(said.fileno(), 2)
            os.dup2(said.fileno(), 1)
            code = in_a_process(fails_of_memory)
        summary = reporter.summary
        (tmp_path / "ended").write_text(repr((code, summary is not None and summary.facts.end)))

    in_a_process(script)
    assert (tmp_path / "ended").read_text() == repr((1, "oom"))
    assert "ut of memory" not in (tmp_path / "said").read_text().replace("MemoryError", "")
