"""A training of three steps that is over in milliseconds: all events, nested phases, every kind of metric."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

from forgather_mem.engine.run import Run
from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Begins, Finding, Moment, Objects, Sample, Sink, Work
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent

STEPS = 3
_STEP = ("step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end", "log")
_PHASE_BEFORE = {"step_begin": "data", "substep_end": "forward", "pre_optimizer_step": "backward"}
_CHILD_S = 20


class SmallRun:
    """One small training in which the engine calls the given works and sinks; their errors pass through.

    Args:
        folder: The trainer's output folder; None for a training without one.
        works, sinks: What takes part.
        rank: This process's rank, of two.
        objects: The keyword arguments of the events: model, optimizer, ...
        events: The works are called at these.
    """

    def __init__(
        self,
        folder: Path | None,
        works: Sequence[Work | Begins],
        sinks: Sequence[Sink] = (),
        *,
        rank: int = 0,
        objects: Objects | None = None,
        events: Sequence[str] = EVENTS,
    ) -> None:
        self.args = SimpleNamespace(output_dir=str(folder) if folder else None, process_index=rank, world_size=2)
        self.state = SimpleNamespace(global_step=0, epoch=0.0)
        self.rules = [Rule(when=AtEvent(*events), do=list(works))]
        self.sinks = [*sinks, _Quiet()]
        self.objects = objects or {}
        self.event = "begin"  # what the engine is doing
        self.run: Run | None = None

    def begin(self) -> Run:
        """The works and sinks begin."""
        self.run = Run.begin(self.args, self.state, strict=True)
        self.run.phases.enter("startup")
        self._plans = self.run.add_member(self, self.rules, self.sinks, 0.0)
        return self.run

    def train(self, steps: int = STEPS) -> None:
        """All events, phases and findings."""
        run, done = self.run or self.begin(), self.state.global_step
        self._fire("train_begin", "epoch_begin")
        for step in range(done + 1, done + steps + 1):
            for event in _STEP:
                if event in _PHASE_BEFORE:
                    self.event = f"the phase {_PHASE_BEFORE[event]!r}"
                    run.phases.enter(_PHASE_BEFORE[event])
                if event == "step_end":
                    self.state.global_step, self.state.epoch = step, (step - done) / steps
                self._fire(event)
                for phase in _PHASE_BEFORE.values():
                    run.phases.leave(phase)
            self._find(run, step)
            self.event = "log_values"
            run.log_values()
        for phase, event in (("evaluate", "prediction_step"), ("evaluate", "evaluate"), ("save", "save")):
            run.phases.enter(phase)
            self._fire(event)
            run.phases.leave(phase)
        self.event = "evaluation_values"
        run.log_values(["eval_loss"])
        self._fire("predict", "epoch_end", "push_begin", "log", "train_end")

    def close(self, end: str = "finished") -> None:
        """The training ends."""
        self.event = "end"
        if self.run is not None:
            self.run.close(end)

    def drop(self) -> None:
        """Let go of the training, whatever has failed; what is open is closed, as far as it can be."""
        if self.run is not None:
            self.run.fence.strict = False
            self.run.close("exception")

    def _fire(self, *events: str) -> None:
        for event in events:
            self.event = f"the event {event!r} of step {self.state.global_step}"
            assert self.run is not None
            if event in self._plans:
                self.run.handle(self._plans[event], self.args, self.state, None, self.objects)

    def _find(self, run: Run, step: int) -> None:
        for kind, text in (("leak", "It grows.\nBy 3 MiB a step."), ("alert", "full soon"), ("profile", "")):
            self.event = f"tell, with a finding of kind {kind!r}"
            data = {"step": step, "rows": [["name", "size"], ["a", 1.5]], "none": None}
            run.emit(Finding(kind=kind, step=step, text=text, data=data))
        self.event = "say"
        run.print_line("")


class _Quiet:
    """Stands where the run's console would be, if no sink before it prints."""

    def write(self, sample: Sample) -> None:
        """Records are not printed."""

    def say(self, text: str) -> None:
        """Nor are lines."""


def readings(moment: Moment, sample: Sample) -> dict[str, float]:
    """Numbers of every kind; more names at each second step, and some whose names are nobody's but the user's."""
    values = {metric.name: 0.5 for metric in every_metric()} if moment.step % 2 else {"host/rss_bytes": 2.0**40}
    return values | {"mine/queue_len": 3, "mine/zero": 0.0, "mine/negative_s": -1e-9, "mine/large_bytes": 1e300}


def files_below(folder: Path) -> dict[str, bytes]:
    """Contents by path."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def in_child(call: Callable[[], str | None]) -> str | None:
    """What the call returns in a forked child; a text that says so if the child hangs or dies."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_as_child, args=(call, writer))
    child.start()
    writer.close()
    try:
        text: str | None = reader.recv() if reader.poll(_CHILD_S) else f"hangs: not done after {_CHILD_S} seconds"
    except EOFError:
        child.join()
        text = f"ends the process, by status {child.exitcode}"
    child.kill()
    child.join()
    reader.close()
    return text


def _as_child(call: Callable[[], str | None], writer: Connection) -> None:
    try:
        writer.send(call())
    except BaseException as error:  # noqa: BLE001  # told to the parent
        writer.send(f"raises {error!r}")


def require(condition: object, message: str) -> None:
    """As `assert`, also where Python leaves those out.

    Raises:
        AssertionError: with this message.
    """
    if not condition:
        raise AssertionError(message)


def check_members(part: object, maker: str, methods: Sequence[str], compared: str) -> None:
    """Refuse a class in a part's place, optional methods that can't be called, a member that can't be compared.

    Args:
        maker: The name of the function that has made it.
        methods, compared: The names of these members.
    """
    if isinstance(part, type):
        raise AssertionError(f"{maker}() gave the class {part.__name__}: return {part.__name__}()")
    name = type(part).__name__
    for method in methods:
        found = getattr(part, method, bool)
        require(callable(found), f"{name}.{method} is {found!r:.60}, and the engine calls it: make it a method")
    try:
        hash(getattr(part, compared, None))
    except TypeError as error:
        raise AssertionError(f"{name}.{compared} can't be compared: {error}; use text, numbers and tuples") from error


@contextlib.contextmanager
def trainings(name: str, where: str, advice: str, small: SmallRun, *others: SmallRun) -> Iterator[None]:
    """What is done with a training, which others that stay open have gone before: an error of the part in them is told
    with `advice`; then they are dropped."""
    try:
        for other in others:
            other.train()
        yield
        for other in others:
            other.close("exception")
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{name} raised {error!r} {where}, at {small.event}: {advice}") from error
    finally:
        for run in (small, *others):
            run.drop()
