"""`MemoryCallback`: runs the user's own rules; without any, reads everything that is cheap."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forgather_mem import probes
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.sinks import BlackBoxSink, JsonlSink, TensorBoardSink
from forgather_mem.telemetry.events import BETWEEN_STEPS
from forgather_mem.telemetry.records import NOTHING, OWN_BUDGET_FRAC, Moment, RunInfo, Sample, Sink
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every

if TYPE_CHECKING:
    from forgather_mem.callbacks.trainer.method_patches import Arguments, Call, Keywords

_MONITORED = ("on_epoch_start", "on_batch_end", "on_epoch_end")


class EpochMonitor(Protocol):
    """The type of `monitor`: `forgather_mem.EpochMemoryMonitor`, or anything with its three methods."""

    def on_epoch_start(self) -> None: ...

    def on_batch_end(self, batch_idx: int, loss: object = None) -> None: ...

    def on_epoch_end(self) -> None: ...


class MemoryCallback(RuleCallback):
    """Runs your own rules; without any it watches: reads everything that is cheap and changes nothing.

    Watching reads at every step while that takes at most 0.5 % of the time, otherwise at every 2nd to 64th step.

    Args:
        rules: What to do, and when. Default: the rules of `callbacks/watch.yaml`.
        sinks: Where the records go. Default: TensorBoard, JSONL and black box if `rules` is omitted too, otherwise
            none: the records then go where the other callbacks of the training send them.
        monitor: An `EpochMemoryMonitor` that is notified of epochs and optimizer steps, and of the loss in its verbose
            batches. Without other arguments this is all that the callback does.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for an invalid rule, sink or monitor.
    """

    def __init__(
        self,
        rules: Sequence[Rule] | None = None,
        sinks: Sequence[Sink] | None = None,
        *,
        monitor: EpochMonitor | None = None,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        for name, parts in (("rules", rules), ("sinks", sinks)):
            if parts is not None and not isinstance(parts, MutableSequence | tuple):
                raise ValueError(f"MemoryCallback({name}={parts!r}): give a list of {name}")
        watching = rules is None and monitor is None
        chosen = list(rules if rules is not None else watch_rules() if watching else [])
        for rule in chosen:
            if not isinstance(rule, Rule):
                raise ValueError(f"MemoryCallback(rules=[... {rule!r} ...]): each is a Rule(when=..., do=[...])")
        if sinks is None:
            sinks = [TensorBoardSink(), JsonlSink(), BlackBoxSink()] if watching else []
        for sink in sinks:
            if not hasattr(sink, "write"):
                raise ValueError(f"MemoryCallback(sinks=[... {sink!r} ...]): a sink has a method write(sample)")
        missing = [name for name in _MONITORED if not callable(getattr(monitor, name, None))]
        if monitor is not None and (missing or isinstance(monitor, type)):
            raise ValueError(
                f"MemoryCallback(monitor={monitor!r}): give an EpochMemoryMonitor(), or an object with its "
                f"methods {', '.join(_MONITORED)}"
            )
        self.needs_phases = bool(chosen)
        self.monitor = monitor
        if monitor is not None:
            bridge, events = [EachRun(_MonitorBridge, monitor)], (AtEvent("epoch_begin", "epoch_end"), Every(steps=1))
            chosen += [Rule(when=when, do=bridge, name="monitor") for when in events]
        super().__init__(chosen, sinks, enabled=enabled, strict=strict)


def watch_rules() -> list[Rule]:
    """The rules of `MemoryCallback()`: cheap readings only; no peak is reset, no kernel mark is touched."""
    host = probes.HostProbe(slow_every_s=30.0, budget_frac=0.0005)
    collector = probes.PythonProbe(tracked_every_s=60.0, budget_frac=0.0005)
    phases = probes.PhaseProbe(host_mark=False, reset_peaks=False, budget_frac=0.0005)
    tensors = probes.TensorProbe(budget_frac=0.0005)
    workers = probes.WorkerProbe(every_s=30.0, budget_frac=0.0005, zeros=False)
    return [
        Rule(
            when=Every(steps=1),
            do=[host, probes.DeviceProbe(reset_peaks=False), collector, phases, probes.CleanupProbe(), workers],
            name="watch",
            budget_frac=OWN_BUDGET_FRAC,
        ),
        Rule(when=AtEvent(*BETWEEN_STEPS), do=[collector, phases], name="watch between steps"),
        Rule(when=Every(steps=10, at="pre_optimizer_step"), do=[tensors], name="watch tensors"),
        Rule(when=Every(steps=50), do=[probes.RankProbe()], name="watch ranks"),
    ]


class _MonitorBridge:
    """Passes the trainer's events on to a monitor, and counts the steps of the epoch for it, in one training.

    The loss of a step in its verbose batches is what the trainer logs as "loss", of this process alone: the sum over
    the micro-batches. Each is read immediately, so that no tensor is kept; for that the host waits for the device.
    """

    def __init__(self, run: RunInfo, monitor: EpochMonitor) -> None:
        from forgather_mem.callbacks.trainer.link import link_of

        self._monitor, self._fence = monitor, run.fence
        self._batch_idx = 0
        self._loss: float | None = None
        link = link_of(run)
        if link is not None and self._num_verbose() > 0:
            link.wrapped.wrap(link.trainer(), "training_step", self._training_step)

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        from forgather_mem.sinks.console import print_line

        # What the main process alone prints; the trainer knows which one that is
        if moment.is_main or getattr(self._monitor, "say", None) is not print_line:
            getattr(self, f"_{moment.event}")()
        return NOTHING

    def _epoch_begin(self) -> None:
        self._batch_idx = 0
        self._monitor.on_epoch_start()

    def _step_end(self) -> None:
        batch_idx, loss = self._batch_idx, self._loss
        self._batch_idx, self._loss = batch_idx + 1, None
        self._monitor.on_batch_end(batch_idx, loss)

    def _epoch_end(self) -> None:
        self._monitor.on_epoch_end()

    def _num_verbose(self) -> int:
        """Number of batches of an epoch for which the monitor prints a line, if it has such a number."""
        monitor = self._monitor
        return getattr(monitor, "verbose_batches", 0) if getattr(monitor, "enabled", True) else 0

    def _training_step(self, call: Call, arguments: Arguments, keywords: Keywords) -> object:
        share = call(*arguments, **keywords)
        if self._batch_idx < self._num_verbose():
            self._fence.call("the loss of a step", self._add, share)
        return share

    def _add(self, share: Any) -> None:
        self._loss = (self._loss or 0.0) + float(share)
