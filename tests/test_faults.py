"""Something of ours fails while a training runs: the training ends as without us, and nothing of ours is left behind.

Every function in every event is in tests/soak/test_faults_soak.py; here are the members of all parts, and the engine's.
"""

import io
import os
import resource
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from forgather_mem import Every, Rule, load_callbacks, release_memory, track_memory
from forgather_mem.callbacks import MemoryAlert, MemoryCallback, OOMReporter, PeakMemory, TBMemoryLogger
from forgather_mem.engine.run_of import run_of
from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.testing.small_run import in_child
from tests.faults import failing, functions
from tests.faulty_trainings import all_callbacks, loop_training, of_the_process, trainer_training
from tests.simulated_device import ALL, SimulatedDevice, simulated_device
from tests.training import AtStep, make_trainer

FUNCTIONS = functions()
MEMBERS = ("begin", "end", "__call__", "phase_begin", "phase_end", "write", "tell", "problems", "log_values", "say")
ENGINE = (
    "engine.run:Run", "engine.record", "engine.sink_set:", "engine.phases:", "engine.schedule:",
    "engine.summary:", "engine.ledger:", "callbacks.base:_", "reporting.build:",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("nothing_frozen")  # what is frozen at the end is looked at


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the loop comes to without us."""
    return str(loop_training([], tmp_path_factory.mktemp("without")))


def of_members(name: str) -> list[str]:
    """This member of all parts; not of the loop, which is the trainer here, nor of the fence itself."""
    return [
        key
        for key in FUNCTIONS
        if key.endswith(f".{name}")
        and not key.startswith(
            ("loops.", "telemetry.guard:", "engine.run:", "engine.sink_set:", "engine.recorder:WorkSet")
        )
    ]


def trains_as_without_us(keys: list[str], from_call: int, folder: Path, expected: str, error: Any) -> None:
    here = set(os.listdir())
    callbacks, before = all_callbacks(io.StringIO()), of_the_process()
    with ExitStack() as stack:
        faults = [stack.enter_context(failing(FUNCTIONS[key], error, from_call)) for key in keys]
        found = str(loop_training(callbacks, folder))
    assert found == expected
    assert of_the_process() == before
    assert set(os.listdir()) == here, "nothing is written into the current folder"
    assert any(fault.calls for fault in faults), "nothing was tried"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in the collector's own callbacks
@pytest.mark.parametrize("from_call", [1, 3])
@pytest.mark.parametrize("name", MEMBERS)
def test_whatever_member_of_all_parts_fails_the_training_goes_on(
    name: str, from_call: int, tmp_path: Path, expected: str
) -> None:
    error = [OSError, MemoryError, RecursionError, StopIteration][(len(name) + from_call) % 4]
    trains_as_without_us(of_members(name), from_call, tmp_path, expected, error)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ENGINE)
def test_whatever_of_the_engine_fails_the_training_goes_on(prefix: str, tmp_path: Path, expected: str) -> None:
    keys = [key for key in FUNCTIONS if key.startswith(prefix) and not key.endswith(".put_back")]
    trains_as_without_us(keys, 3, tmp_path, expected, lambda: torch.OutOfMemoryError("injected"))


@pytest.fixture(scope="module")
def trainer_expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trainer_training([], tmp_path_factory.mktemp("without"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "link:Link.begin",
        "link:_last" if hasattr(Trainer, "_run_epoch") else "link:_training",
        "link:_whole",
        "link:_wrap_phases",
        "phases:PhaseStack.enter",
        "run:Run.close",
    ],
)
def test_a_trainer_goes_on_when_what_stands_around_its_methods_fails(
    key: str, tmp_path: Path, trainer_expected: Any
) -> None:
    (full,) = [known for known in FUNCTIONS if known.endswith(key)]
    with failing(FUNCTIONS[full], RuntimeError) as fault:
        found = trainer_training([TBMemoryLogger(), PeakMemory(), OOMReporter()], tmp_path)
    assert found == trainer_expected
    assert fault.calls


class Fails:
    """A user's own part, as a sink, a probe and a watcher of phases: one of its members raises from step 3 on."""

    wants_begin = True

    def __init__(self, member: str) -> None:
        self.member = member
        self.calls = 0
        self.step = 0
        self.watches = False

    def _maybe(self, member: str) -> None:
        if member == self.member and (self.step >= 3 or member in ("begin", "is_urgent", "end", "problems")):
            self.calls += 1
            raise ValueError(f"{member} of a user's part")

    def begin(self, run: Any) -> None:
        if not self.watches:  # as a probe and as a sink it begins twice
            self.watches = True
            run.watch_phases(self)
        self._maybe("begin")

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        self.step = moment.step
        self._maybe("call")
        return {"mine/number": 1.0}

    def is_urgent(self) -> bool:
        self._maybe("is_urgent")
        return False

    def phase_begin(self, phase: str) -> None:
        self._maybe("phase_begin")

    def phase_end(self, phase: str) -> None:
        self._maybe("phase_end")

    def write(self, sample: Sample) -> None:
        self._maybe("write")

    def tell(self, finding: Any) -> None:
        self._maybe("tell")

    def problems(self) -> str | None:
        self._maybe("problems")
        return None

    def log_values(self, step: int) -> dict[str, float]:
        self._maybe("log_values")
        return {}

    def end(self, run: Any) -> None:
        self._maybe("end")


@pytest.mark.slow
@pytest.mark.parametrize(
    "member", ["begin", "call", "phase_begin", "phase_end", "write", "problems", "log_values", "end"]
)
def test_a_users_own_part_that_fails_ends_no_training_and_stops_no_other_part(
    member: str, tmp_path: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    part, capture = Fails(member), Capture()
    ours = MemoryCallback([Rule(Every(steps=1), [part, HostProbe()], name="mine")], [part, capture])
    ours.needs_phases = True
    assert str(loop_training([ours], tmp_path)) == expected
    assert part.calls
    assert member != "begin" or any("begin failed, so that it writes nothing" in t for t in ours.summary.switched_off)
    assert [s.step for s in capture.samples if s.event == "step_end" and "host/rss_bytes" in s.values] == [*range(1, 7)]
    told = [record for record in caplog.records if f"{member} of a user's part" in str(record.exc_info)]
    assert len(told) == 1, "told once, with its traceback"
    if member in ("call", "phase_begin", "phase_end"):
        assert part.calls == 3
        assert any("switched off after 3 failures in a row" in text for text in ours.summary.switched_off)


def test_a_failing_is_urgent_is_asked_three_times_and_the_reading_goes_on(tmp_path: Path, expected: str) -> None:
    part, capture = Fails("is_urgent"), Capture()
    part.step = 3
    slow = MemoryCallback([Rule(Every(steps=1), [part], name="slow", budget_frac=1e-9)], [capture])

    class Stretch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                for plans in run_of(state).members.values():
                    for plan in plans.values():
                        plan.keep_to_budget(0.0, 1.0)

    assert str(loop_training([slow, Stretch()], tmp_path)) == expected
    assert part.calls == 3
    assert any("slow: switched off" in text for text in slow.summary.switched_off)


def test_what_has_no_file_for_some_steps_reads_on_afterwards(tmp_path: Path) -> None:
    """With a real limit, in a fork: all files are opened in one step, and closed five steps later."""

    def train() -> str:
        files: list[int] = []

        def open_all() -> None:
            with suppress(OSError):
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))

        told = Capture()
        rises = Rule(Every(steps=1), [lambda moment, sample: {"mine/late_frac": moment.step / 12}])
        late = [MemoryCallback([rises], [told]), MemoryAlert({"mine/late_frac": "90%"}, every_steps=1)]
        at = [AtStep(3, open_all), AtStep(8, lambda: os.closerange(min(files), max(files) + 1))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        make_trainer(tmp_path, [*all_callbacks(io.StringIO()), *late, *at], max_steps=12).train()
        return f"{late[0].summary.switched_off} {[one.step for one in told.findings if 'late' in one.text]}"

    assert in_child(train) == "[] [11]"


QUESTIONS = (
    "current_accelerator", "is_initialized", "current_device", "get_allocator_backend", "reset_peak_memory_stats",
    "mem_get_info", "_cuda_memoryStats", "empty_cache",
)  # fmt: skip


class Breaks(TrainerCallback):
    """From step 3 on the driver answers this question with an error."""

    def __init__(self, device: SimulatedDevice, question: str) -> None:
        self.device, self.question = device, question

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.device.broken = self.question if state.global_step >= 2 else ""


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_whatever_question_the_driver_does_not_answer_in_mid_run_the_training_goes_on(
    question: str, tmp_path: Path, expected: str, device: SimulatedDevice
) -> None:
    before = of_the_process()
    device.hold(100.0)
    assert str(loop_training([Breaks(device, question), *all_callbacks(io.StringIO())], tmp_path)) == expected
    assert of_the_process() == before


def test_a_device_that_is_lost_is_asked_once_more_and_told_in_one_line(
    tmp_path: Path, expected: str, device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    watching = load_callbacks("callbacks/watch.yaml")
    device.hold(100.0)
    callbacks = [Breaks(device, ALL), *watching, *all_callbacks(io.StringIO())]
    assert str(loop_training(callbacks, tmp_path)) == expected
    with track_memory("after it", say=lambda text: None) as block:
        release_memory()
    assert block.gpu is None
    assert device.failures == 1
    (line,) = [message for message in caplog.messages if "CUDA error" in message]
    assert line == "the device has failed, and is asked nothing more: CUDA error: unspecified launch failure"
    assert line in watching[0].summary.switched_off


def test_a_device_that_fails_takes_no_reading_of_the_host_with_it(tmp_path: Path, device: SimulatedDevice) -> None:
    capture = Capture()
    works = [DeviceProbe(), HostProbe(), PhaseProbe(host_mark=True, budget_frac=1)]
    ours = MemoryCallback([Rule(Every(steps=1), works, name="all")], [capture])
    device.hold(100.0)
    loop_training([Breaks(device, "_cuda_memoryStats"), ours], tmp_path)
    steps = [s for s in capture.samples if s.event == "step_end"]
    assert all("host/rss_bytes" in s.values for s in steps)
    assert ["device/allocated_bytes" in s.values for s in steps] == [True] * 2 + [False] * 4
    assert any("the device has failed" in text for text in ours.summary.switched_off)


def test_the_scripts_own_error_in_empty_cache_is_the_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(self: SimulatedDevice) -> None:
        raise RuntimeError("the script's own")

    monkeypatch.setattr(SimulatedDevice, "empty_cache", fails)
    with simulated_device(monkeypatch), pytest.raises(RuntimeError, match="the script's own"):
        loop_training([MemoryCallback(), AtStep(1, lambda: torch.cuda.empty_cache())], tmp_path)


def test_what_callbacks_ask_the_trainer_for_still_counts_when_something_of_ours_fails(tmp_path: Path) -> None:
    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control.should_training_stop = state.global_step == 2
            return control

    trainer = make_trainer(tmp_path, [Stops(), MemoryCallback([Rule(Every(steps=1), [Fails("call")])])])
    with failing(FUNCTIONS["engine.run:Run.handle"], RuntimeError):
        trainer.train()
    assert trainer.state.global_step == 2


def test_the_trainings_own_error_passes_unchanged_when_something_of_ours_fails_at_it(tmp_path: Path) -> None:
    class Breaks(Trainer):
        calls = 0

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            type(self).calls += 1
            raise ArithmeticError("theirs")

    names = ("PhaseStack.fail", "close_failed", "PhaseStack.leave", "Run.close")
    for name in names:
        trainer = make_trainer(tmp_path / name, [MemoryCallback(), OOMReporter()], trainer_class=Breaks)
        (key,) = [key for key in FUNCTIONS if key.endswith(f":{name}")]
        with failing(FUNCTIONS[key], RuntimeError), pytest.raises(ArithmeticError, match="theirs"):
            trainer.train()
    assert Breaks.calls == len(names), "called once, never again"
