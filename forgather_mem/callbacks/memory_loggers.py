"""Callbacks that log memory: `TBMemoryLogger`, `JsonMemoryLogger`, and `PeakMemory` for the peak alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.errors import check_flags
from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, RankProbe, TensorProbe, WorkerProbe
from forgather_mem.sinks import JsonlSink, TensorBoardSink, TrackerSummarySink, TrainerLogSink
from forgather_mem.sinks.trainer_log import GROUPS, check_groups
from forgather_mem.telemetry.events import BETWEEN_STEPS
from forgather_mem.telemetry.records import Begins, Sink
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent, Every, check_period

DEFAULT_METRICS = ("host", "device", "gc")
"""The default of `metrics`: host memory, device memory, and the collector's pauses."""

_VERDICT = "verdict"


class TBMemoryLogger(RuleCallback):
    """Writes host memory, device memory and collector pauses to TensorBoard, next to the run's losses.

    One record per step, whatever the number of metrics. It costs a few microseconds per step (benchmarks/), never
    synchronises the device, never stops a training because a disk is full, and writes on rank 0 only.

    Args:
        summary_writer: A `torch.utils.tensorboard.SummaryWriter` to write through. Default: a file of our own
            in the run's TensorBoard folder, so that `train/loss` and `mem_*` are in one run.
        every_steps: Read every Nth optimizer step. Our callbacks share one record a step: what another of them reads in
            the steps between is written, too.
        metrics: Groups of `host`, `device`, `phases`, `gc`, `workers`, `tensors`; docs/metrics.md explains each.
        logging_dir: The TensorBoard folder. Default: `TENSORBOARD_LOGGING_DIR`, else the folder of the trainer's own
            event file, else `output_dir/runs/<time>_<host>`.
        reset_peaks: Reset the device's peak after each record, and with `phases` the peaks of the device and the kernel
            at each phase. Other readers in this process see the reset; False leaves them alone, and a phase then has a
            number only if the peak rises in it.
        hparams: Hyperparameters of this run for the HParams tab, name to value; its metrics are the peaks.
        rank_steps: With several ranks, rank 0 compares their memory every N steps (`mem_ranks/*`).
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> TBMemoryLogger(metrics=["host", "gpu"])
    Traceback (most recent call last):
    ...
    ValueError: TBMemoryLogger(metrics=['gpu']): the groups are host, device, phases, gc, workers, tensors

    Raises:
        ValueError: for a period below 1, an unknown group, a value of the wrong kind, or both a writer and a folder.
    """

    def __init__(
        self,
        summary_writer: object = None,
        every_steps: int = 1,
        *,
        metrics: Sequence[str] = DEFAULT_METRICS,
        logging_dir: str | Path | None = None,
        reset_peaks: bool = True,
        hparams: Mapping[str, object] | None = None,
        rank_steps: int = 50,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        rules = metric_rules("TBMemoryLogger", metrics, every_steps, reset_peaks=reset_peaks)
        self.needs_phases = "phases" in metrics
        check_period("TBMemoryLogger", "rank_steps", "step", rank_steps, needed=True)
        rules.append(Rule(when=Every(steps=rank_steps), do=[RankProbe()], name="TBMemoryLogger ranks"))
        if summary_writer is not None and not hasattr(summary_writer, "add_scalar"):
            raise ValueError(
                f"TBMemoryLogger(summary_writer={summary_writer!r}): give a torch.utils.tensorboard.SummaryWriter; "
                "for a folder use logging_dir"
            )
        if logging_dir is not None and not isinstance(logging_dir, str | os.PathLike):
            raise ValueError(f"TBMemoryLogger(logging_dir={logging_dir!r}): give a folder's name")
        if hparams is not None and not isinstance(hparams, Mapping):
            raise ValueError(f"TBMemoryLogger(hparams={hparams!r}): give names and values, as {{'lr': 0.001}}")
        sink = TensorBoardSink(summary_writer, logging_dir=logging_dir, hparams=hparams)
        super().__init__(rules, [sink], enabled=enabled, strict=strict)


class JsonMemoryLogger(RuleCallback):
    """Writes the same readings as one JSON object per line, one file per rank: `memory.rank{r}.jsonl`.

    Args:
        path: The file. Default: in `<output_dir>/forgather_mem/<time>/`.
        every_steps: As for `TBMemoryLogger`.
        metrics: As for `TBMemoryLogger`.
        reset_peaks: As for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period below 1 or an unknown group.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        every_steps: int = 1,
        *,
        metrics: Sequence[str] = DEFAULT_METRICS,
        reset_peaks: bool = True,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        rules = metric_rules("JsonMemoryLogger", metrics, every_steps, reset_peaks=reset_peaks)
        self.needs_phases = "phases" in metrics
        super().__init__(rules, [JsonlSink(path)], enabled=enabled, strict=strict)


class PeakMemory(RuleCallback):
    """Adds the peak since the last log line to every line the trainer logs (and so to W&B, MLflow, ...).

    Args:
        every_steps: Read every Nth optimizer step; the peaks themselves come from counters that miss nothing.
        prefix: Prefix of the keys in the trainer's logs.
        also: What else: "headroom", "phases" and "tensors" add keys to the lines (`TrainerLogSink`); "verdict" writes
            what came of the training into the summary of its run in W&B, MLflow, Comet or trackio
            (`TrackerSummarySink`).
        reset_peaks: As for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period below 1, or something unknown in `also`.
    """

    def __init__(
        self,
        every_steps: int = 1,
        *,
        prefix: str = "mem_",
        also: Sequence[str] = (),
        reset_peaks: bool = True,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        also = check_groups("PeakMemory", "also", also, (*GROUPS, _VERDICT))
        self.needs_phases = "phases" in also
        metrics = ["host", "device", *(name for name in ("phases", "tensors") if name in also)]
        rules = metric_rules("PeakMemory", metrics, every_steps, reset_peaks=reset_peaks)
        in_lines = [group for group in also if group != _VERDICT]
        sinks: list[Sink] = [TrainerLogSink(prefix=prefix, also=in_lines)]
        if _VERDICT in also:
            sinks.append(TrackerSummarySink(prefix=f"{prefix}run_"))
        super().__init__(rules, sinks, enabled=enabled, strict=strict)


def metric_rules(owner: str, metrics: Sequence[str], every_steps: int, *, reset_peaks: bool) -> list[Rule]:
    """The rules that read the named groups every `every_steps` steps.

    Raises:
        ValueError: naming `owner`, for a period below 1, an unknown group, or a switch that is neither true nor false.
    """
    check_period(owner, "every_steps", "step", every_steps, needed=True)
    check_flags(owner, reset_peaks=reset_peaks)
    groups: dict[str, Callable[[], Begins]] = {
        "host": HostProbe,
        "device": lambda: DeviceProbe(reset_peaks=reset_peaks),
        "phases": lambda: PhaseProbe(host_mark=reset_peaks, reset_peaks=reset_peaks),
        "gc": PythonProbe,
        "workers": WorkerProbe,
        "tensors": TensorProbe,
    }
    chosen = {name: groups[name]() for name in check_groups(owner, "metrics", metrics, groups)}
    if not chosen:
        raise ValueError(f"{owner}(metrics=[]): name one group or more: {', '.join(groups)}")
    rules = [Rule(when=Every(steps=every_steps), do=list(chosen.values()), name=f"{owner} readings")]
    if between := [chosen[name] for name in ("phases", "gc") if name in chosen]:
        rules.append(Rule(when=AtEvent(*BETWEEN_STEPS), do=between, name=f"{owner} between steps"))
    if "tensors" in chosen:  # at the step's end gradients are already released
        at_gradients = Every(steps=every_steps, at="pre_optimizer_step")
        rules.append(Rule(when=at_gradients, do=[chosen["tensors"]], name=f"{owner} tensors"))
    return rules
