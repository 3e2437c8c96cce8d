"""`ProgressCallback`: shows a training's progress, with bars on a terminal or with timestamped lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Never, TextIO

from tqdm.auto import tqdm
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_callback import ProgressCallback as TransformersBar

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.trainer.calling import fellow_callbacks
from forgather_mem.callbacks.trainer.link import Link, link_of
from forgather_mem.callbacks.training.info import num_items
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent

_EVENTS = ("train_begin", "step_end", "log", "prediction_step", "evaluate", "predict")
# Keys of a log line that come first; those of no interest to people are left out.
_FIRST = ("loss", "eval_loss", "grad_norm", "learning_rate")


class ProgressCallback(RuleCallback):
    """Shows a training's progress on rank 0: one bar for training and one for evaluation, with the metrics.

    Without a terminal, it prints lines with date and time instead. In a `transformers.Trainer` it replaces the
    Trainer's own bar (or printer) during training; a notebook's table stays, and this callback is then silent. It is
    also silent when it can't tell whether the Trainer shows a bar of its own, as in an evaluation outside a training.

    Args:
        use_tqdm: Bars (True) or lines (False). Default: bars on a terminal and in a notebook, unless the trainer's
            `disable_tqdm` says otherwise.
        output_stream: "stderr" (the default), "stdout", or an open text stream.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> ProgressCallback(output_stream="stdin")
    Traceback (most recent call last):
    ...
    ValueError: ProgressCallback(output_stream='stdin'): write to 'stdout' or 'stderr', or give an open text stream

    Raises:
        ValueError: for an invalid stream.
    """

    outside: ClassVar[frozenset[str]] = frozenset({"log", "prediction_step", "evaluate", "predict"})

    def __init__(
        self,
        use_tqdm: bool | None = None,
        output_stream: str | TextIO | None = None,
        *,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        if output_stream not in (None, "stdout", "stderr") and not hasattr(output_stream, "write"):
            raise ValueError(
                f"ProgressCallback(output_stream={output_stream!r}): write to 'stdout' or 'stderr', or give an open "
                "text stream"
            )
        bars = _Bars(use_tqdm, output_stream)
        super().__init__([Rule(AtEvent(*_EVENTS), [bars], "ProgressCallback")], enabled=enabled, strict=strict)


class _Bars:
    """The work: the bars of one training, or its lines.

    Attributes:
        silent: Whether something else shows the progress; None until that is known.
    """

    def __init__(self, use_tqdm: bool | None, output_stream: str | TextIO | None) -> None:
        self._use_tqdm = use_tqdm
        self._stream = output_stream
        self.silent: bool | None = None
        self._forget()

    def _forget(self) -> None:
        self._training = False
        self._shown: dict[str, object] = {}
        self._train_bar: tqdm[Never] | None = None
        self._eval_bar: tqdm[Never] | None = None

    def begin(self, run: RunInfo) -> None:
        """A training begins, or an event outside one."""
        link = link_of(run)
        self.silent = None if link is None else not _replaces_bars(link)

    def end(self, run: RunInfo) -> None:
        """The training is over, however it ended; the bar of an evaluation outside one stays until that has ended."""
        if self._training:
            self._close()

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if self.silent is None:
            self.silent = any(map(_is_bar, fellow_callbacks()))
        if not moment.is_main or self.silent:
            return NOTHING
        getattr(self, f"_{moment.event}")(moment)
        return NOTHING

    def _train_begin(self, moment: Moment) -> None:
        self._close()
        self._training = True
        if self._as_bars(moment):
            self._train_bar = self._bar("train", _total_steps(moment), initial=moment.step, leave=True)

    def _step_end(self, moment: Moment) -> None:
        if self._train_bar is not None:
            self._train_bar.update(moment.step - self._train_bar.n)

    def _log(self, moment: Moment) -> None:
        logs = moment.objects.get("logs") or {}
        if self._train_bar is not None:
            self._shown.update({name: logs[name] for name in _FIRST if name in logs})
            self._train_bar.set_postfix_str(_metrics(self._shown), refresh=False)
        if not any(key.startswith("eval_") for key in logs):  # an evaluation's numbers are shown at its end
            self._say(_line(moment, logs))

    def _prediction_step(self, moment: Moment) -> None:
        if not self._as_bars(moment):
            return
        if self._eval_bar is None:
            self._eval_bar = self._bar("eval", num_items(moment.objects.get("eval_dataloader")), leave=False)
        self._eval_bar.update(1)

    def _evaluate(self, moment: Moment) -> None:
        self._predict(moment)
        self._say(_line(moment, moment.objects.get("metrics") or {}))

    def _predict(self, moment: Moment) -> None:
        bar, self._eval_bar = self._eval_bar, None
        if bar is not None:
            bar.close()

    def _bar(self, what: str, total: int | None, *, leave: bool, initial: int = 0) -> tqdm[Never]:
        return tqdm(
            desc=what, total=total, initial=initial, leave=leave, dynamic_ncols=True, file=self._out(), unit="step"
        )

    def _as_bars(self, moment: Moment) -> bool:
        if self._use_tqdm is not None:
            return self._use_tqdm
        if getattr(moment.args, "disable_tqdm", False):
            return False
        out = self._out()
        return "ipykernel" in sys.modules or (hasattr(out, "isatty") and out.isatty())

    def _say(self, text: str) -> None:
        stamped = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}"
        tqdm.write(stamped, file=self._out())
        self._out().flush()

    def _out(self) -> TextIO:
        """The current stream: a notebook or a test may have replaced it."""
        if isinstance(self._stream, str) or self._stream is None:
            return sys.stdout if self._stream == "stdout" else sys.stderr
        return self._stream

    def _close(self) -> None:
        bars = [bar for bar in (self._eval_bar, self._train_bar) if bar is not None]
        for bar in bars:
            bar.close()
        self._forget()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._use_tqdm, self._stream)


def _replaces_bars(link: Link) -> bool:
    """Replace the Trainer's own bar until the training ends; False if it must stay."""
    others = link.callbacks()
    if any(_is_bar(callback) and type(callback) is not TransformersBar for callback in others):
        return False
    for callback in others:
        if type(callback) is TransformersBar:
            _put_a_quiet_bar_in(callback)
            link.mute(callback, ("train_begin", "step_end", "prediction_step", "evaluate", "predict", "log"))
        elif type(callback) is PrinterCallback:
            link.mute(callback, ("log",))
    return True


def _put_a_quiet_bar_in(callback: Any) -> None:
    """Gives the callback a disabled bar, which it closes itself at the end of the training, like its own."""
    if callback.training_bar is not None:
        callback.training_bar.leave = False
        callback.training_bar.close()
    callback.training_bar = tqdm(disable=True)
    callback.current_step = 0


def _is_bar(callback: object) -> bool:
    """Whether a callback is transformers' bar, the user's version of it, or the table in a notebook."""
    return isinstance(callback, TransformersBar) or type(callback).__name__ == "NotebookProgressCallback"


def _total_steps(moment: Moment) -> int | None:
    """None if unknown: a custom loop has 0, or the largest possible number."""
    total = getattr(moment.state, "max_steps", 0) or 0
    return total if 0 < total < sys.maxsize else None


def _line(moment: Moment, logs: Mapping[str, object]) -> str:
    total = _total_steps(moment)
    step = f"{moment.step:,}" if total is None else f"{moment.step:,}/{total:,}"
    return f"step {step}{f'  epoch {moment.epoch:.2f}' if moment.epoch is not None else ''}  {_metrics(logs)}"


def _metrics(logs: Mapping[str, object]) -> str:
    """The metrics on one line, the most important first."""
    names = [name for name in _FIRST if name in logs]
    names += [name for name in logs if name not in _FIRST and name not in ("epoch", "total_flos")]
    values = ((name, logs[name]) for name in names)
    return "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values)
