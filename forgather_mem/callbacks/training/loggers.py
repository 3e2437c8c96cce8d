"""Callbacks that write what a training logs: `TBLogger` to TensorBoard, `JsonLogger` to one JSON file."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.trainer.link import link_of
from forgather_mem.callbacks.training.info import arguments, markdown, settings, training_facts
from forgather_mem.callbacks.training.output_paths import EventTarget, event_folder
from forgather_mem.formats.json_array import JsonArrayFile
from forgather_mem.sinks.event_page import check_target
from forgather_mem.source.source_lines import is_our_class
from forgather_mem.telemetry.plain_numbers import as_number
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.redaction import redacted_value
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent

logger = logging.getLogger(__name__)

Derive = Callable[[float, Mapping[str, object]], float | None]
# Longer texts are not settings by which runs are compared.
_MAX_HPARAM_CHARS = 100


def perplexity(loss: float, logs: Mapping[str, object]) -> float:
    """The perplexity of a mean loss per token in nats; infinite if a float can't hold it.

    >>> perplexity(0.0, {}), perplexity(1e6, {})
    (1.0, inf)
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


DEFAULT_SCALARS: tuple[tuple[str, str] | tuple[str, str, Derive], ...] = (
    ("loss", "train-loss"),
    ("loss", "train-perplexity", perplexity),
    ("learning_rate", "learning-rate"),
    ("grad_norm", "grad-norm"),
    ("max_grad_norm", "grad-norm[max]"),
    ("eval_loss", "eval-loss"),
    ("eval_loss", "eval-perplexity", perplexity),
    ("eval_accuracy", "eval-accuracy"),
)
"""The default of `scalars`: key in the trainer's logs, tag, function. Any other numbers that the trainer logs use their
own keys."""


class TBLogger(RuleCallback):
    """Writes what the trainer logs to TensorBoard, the configuration as text, and the run to the HParams tab.

    Zero is a value, and so is a NaN loss. It writes on rank 0 only, in records that survive a crash; a failing disk
    never ends the training.

    Args:
        summary_writer: A `torch.utils.tensorboard.SummaryWriter` to write through: it is not configured or closed.
            Default: a file of our own in the run's TensorBoard folder, beside `mem_*`.
        scalars: What to log, each (key in the logs, tag) or (key, tag, function), where `function(value, logs)` returns
            the number, or None for no point. Default: `DEFAULT_SCALARS`, and other numbers under their own keys.
        logging_dir: The folder for our own file, if it can't be found as for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.
        **experiment_info: Anything worth knowing about the experiment (`name`, `description`, `config`, ...), shown as
            text; numbers and short texts also in the HParams tab for comparing runs.

    >>> TBLogger(scalars=[["loss"]])
    Traceback (most recent call last):
    ...
    ValueError: TBLogger(scalars=[... ['loss'] ...]): each is (key, tag) or (key, tag, function)

    Raises:
        ValueError: for scalars in another form, or both a writer and a folder.
    """

    outside: ClassVar[frozenset[str]] = frozenset({"log", "evaluate"})

    def __init__(
        self,
        summary_writer: object = None,
        scalars: Sequence[Sequence[object]] | None = None,
        *,
        logging_dir: str | Path | None = None,
        enabled: bool = True,
        strict: bool = False,
        **experiment_info: object,
    ) -> None:
        check_target("TBLogger", summary_writer, logging_dir)
        self.summary_writer = summary_writer
        self.experiment_info = experiment_info
        self.scalars = tuple(map(_checked, scalars if scalars is not None else DEFAULT_SCALARS))
        info = {name: redacted_value(value, name) for name, value in experiment_info.items()}
        written: dict[str, tuple[int, str]] = {}  # also by an event outside a training, which is a run of its own
        writer = EachRun(_TBWriter, (summary_writer, logging_dir), info, self.scalars, scalars is None, written)
        when = AtEvent("train_begin", "log", "evaluate", "train_end")
        super().__init__([Rule(when, [writer], "TBLogger")], enabled=enabled, strict=strict)


@dataclass(eq=False)
class _TBWriter:
    """The work in one training, or in an event outside one: it has one page."""

    run: RunInfo
    target: tuple[object, str | Path | None]
    info: Mapping[str, object]
    scalars: Sequence[tuple[str, str, Derive | None]]
    takes_all: bool
    written: dict[str, tuple[int, str]]

    def __post_init__(self) -> None:
        self._target = EventTarget(self.run, *self.target)
        self._keys = {key for key, _, _ in self.scalars}

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if not moment.is_main:
            return NOTHING
        if moment.event == "train_begin":
            self.written.clear()
            self._introduce(moment)
            self._find_double()
        elif moment.event == "train_end":
            self._conclude(moment)
        else:
            logs = moment.objects.get("logs" if moment.event == "log" else "metrics") or {}
            self._target.page(moment).scalars(self._new(moment, logs), moment.step)
        return NOTHING

    def _introduce(self, moment: Moment) -> None:
        page = self._target.page(moment)
        if self.info:
            page.text("experiment", markdown({"experiment": {k: str(v) for k, v in self.info.items()}}), moment.step)
        facts = training_facts(moment)
        facts["arguments"] = {name: str(value) for name, value in arguments(moment.args).items()}
        config = getattr(moment.objects.get("model"), "config", None)
        if config is not None:
            facts["model"]["config"] = str(config)
        page.text("training_info", markdown(facts), moment.step)
        short = {name: value for name, value in self.info.items() if _is_short(value)}
        if hparams := {**settings(moment.args), **short}:
            page.hparams(hparams, [tag for _, tag, _ in self.scalars])

    def _find_double(self) -> None:
        """Forgather's own writes the same tags into the same folder."""
        link = link_of(self.run)
        others = [type(one) for one in (link.callbacks() if link is not None else ())]
        if any(one.__name__ == "TBLogger" and not is_our_class(one) for one in others):
            self.run.print_line("Two callbacks called TBLogger: each of their tags is there twice; remove one of them")

    def _conclude(self, moment: Moment) -> None:
        page, history = self._target.page(moment), getattr(moment.state, "log_history", None)
        if history:
            results = {name: str(value) for name, value in history[-1].items()}
            page.text("train_results", markdown({"results": results}), moment.step)
        page.finished()

    def _new(self, moment: Moment, logs: Mapping[str, object]) -> dict[str, float]:
        """The numbers by tag, without those already written for this step: evaluations are logged too."""
        values: dict[str, float] = {}
        for key, tag, derive in self.scalars:
            number = as_number(logs.get(key))
            if number is not None and derive is not None:
                number = as_number(self.run.fence.call(f"TBLogger, {tag!r}", derive, number, logs))
            if number is not None:
                values[tag] = number
        if self.takes_all:
            rest = {key: as_number(value) for key, value in logs.items() if key not in self._keys}
            values.update({key: number for key, number in rest.items() if number is not None})
        new = {tag: number for tag, number in values.items() if self.written.get(tag) != (moment.step, repr(number))}
        self.written.update({tag: (moment.step, repr(number)) for tag, number in new.items()})
        return new


def _checked(scalar: Sequence[Any]) -> tuple[str, str, Derive | None]:
    parts = () if isinstance(scalar, str) else tuple(scalar)
    named = len(parts) in (2, 3) and all(isinstance(part, str) and part for part in parts[:2])
    if not named or (len(parts) == 3 and parts[2] is not None and not callable(parts[2])):
        raise ValueError(f"TBLogger(scalars=[... {scalar!r} ...]): each is (key, tag) or (key, tag, function)")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def _is_short(one: object) -> TypeGuard[str | float]:
    return isinstance(one, int | float) or (isinstance(one, str) and len(one) <= _MAX_HPARAM_CHARS and "\n" not in one)


# ---- one JSON file ----

FILE_NAME = "trainer_logs.json"
# Stored on the trainer's state, so that an evaluation after the training continues in its file.
_PATH_ATTRIBUTE = "_forgather_mem_json"
_EVENTS = ("train_begin", "epoch_end", "log", "evaluate", "save", "train_end")


class JsonLogger(RuleCallback):
    """Writes log lines, evaluations, checkpoints, epochs, and the start and end of a training to `trainer_logs.json`.

    The file is a JSON array, valid after every record, also if the process is killed between two of them; a record torn
    by a kill is cut off by the training that continues the file. It is in the run's TensorBoard folder; a resumed
    training continues its file. Rank 0 only. A record is

        {"event": "on_log", "timestamp": "2024-01-01T12:00:00.000+00:00", "global_step": 100, "epoch": 0.5,
         "metrics": {"loss": 2.34, "learning_rate": 0.0001}, "meta": {"name": "My Experiment"}}

    and the record of `on_train_begin` also has the trainer's arguments and the model's configuration. Infinite numbers
    and NaN become null, since JSON has no form for them.

    Args:
        logging_dir: The folder, if it can't be found as for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.
        **experiment_info: The "meta" of every record (`name`, `description`, `config`, ...).
    """

    outside: ClassVar[frozenset[str]] = frozenset({"log", "evaluate"})

    def __init__(
        self,
        *,
        logging_dir: str | Path | None = None,
        enabled: bool = True,
        strict: bool = False,
        **experiment_info: object,
    ) -> None:
        self.experiment_info = experiment_info
        self._paths: list[Path] = []  # of this training, or of the last one
        info = {name: redacted_value(value, name) for name, value in experiment_info.items()}
        writer = EachRun(_JsonWriter, logging_dir, info, self._paths)
        super().__init__([Rule(AtEvent(*_EVENTS), [writer], "JsonLogger")], enabled=enabled, strict=strict)

    @property
    def path(self) -> Path | None:
        """The file of this training, or of the last one; None before the first record."""
        return next(iter(self._paths), None)


class _JsonWriter:
    """The work in one training, or in an evaluation outside one."""

    def __init__(self, run: RunInfo, folder: str | Path | None, info: Mapping[str, object], paths: list[Path]) -> None:
        self._logging_dir, self._info, self._paths = folder, info, paths
        self._file: JsonArrayFile | None = None
        self._began_s = time.time()
        run.at_close(self._close)

    def _close(self) -> None:
        if self._file is not None and (problem := self._file.problem()):
            logger.warning("JsonLogger: %s", problem)
        self._file = None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.is_main:
            if self._file is None:
                self._paths[:] = [self._place(moment)]
                self._file = JsonArrayFile(self._paths[0])
            self._file.append(self._record(moment))
        return NOTHING

    def _record(self, moment: Moment) -> dict[str, object]:
        metrics = moment.objects.get("logs" if moment.event == "log" else "metrics")
        record = {
            "event": f"on_{moment.event}",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "global_step": moment.step,
            "epoch": moment.epoch,
            "metrics": dict(metrics or {}),
            "meta": self._info,
        }
        if moment.event == "train_begin":
            config = getattr(moment.objects.get("model"), "config", None)
            record["arguments"] = arguments(moment.args)
            record["model"] = config.to_dict() if config is not None and hasattr(config, "to_dict") else None
        return record

    def _place(self, moment: Moment) -> Path:
        known: Path | None = getattr(moment.state, _PATH_ATTRIBUTE, None)
        if known is not None and self._logging_dir is None:
            return known
        path = self._find(moment)
        setattr(moment.state, _PATH_ATTRIBUTE, path)
        return path

    def _find(self, moment: Moment) -> Path:
        folder, output_dir = event_folder(moment, self._logging_dir, self._began_s), moment.run.output_dir
        if "://" in folder:
            path = (output_dir or Path()) / FILE_NAME
            logger.warning("JsonLogger: %s is remote; the log is written to %s", folder, path)
            return path
        path = Path(folder) / FILE_NAME
        resumes = moment.event == "train_begin" and moment.step > 0
        if resumes and not path.exists() and output_dir is not None:
            earlier = [log for log in (output_dir / "runs").rglob(FILE_NAME) if log.is_file()]
            return max(earlier, key=lambda log: log.stat().st_mtime, default=path)
        return path
