"""What does a person at the terminal see while the run goes on?"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from forgather_mem.metrics import metric_of
from forgather_mem.sample import Finding, RunInfo, Sample
from forgather_mem.triggers import check_period
from forgather_mem.units import format_bytes

# What a line shows of a record, where it is there: sample name and word.
_SHOWN = (
    ("host/rss_bytes", "host"),
    ("device/allocated_bytes", "allocated"),
    ("device/reserved_bytes", "reserved"),
    ("device/step_peak_bytes", "peak"),
)
# These stand in the run's report, which is printed by itself; an alert has printed its line.
_NOT_PRINTED = ("verdict", "backed_off", "cleanup_calls", "advice", "alert")
# A failing rank prints too, with its number.
_FROM_EVERY_RANK = ("oom", "exception")


class ConsoleSink:
    """Prints findings, and a short line every so many steps when asked; beside the progress bar, not into it.

    Rank 0 prints; another rank only that it fails. A stream that is closed or can't show a character is no
    error.

    Args:
        every_steps: Print a line of the record at every N-th step. Default: none.
        stream: Where to. Default: the `sys.stderr` of the moment; a script's own stdout is left alone.

    >>> ConsoleSink(every_steps=0)
    Traceback (most recent call last):
    ...
    ValueError: ConsoleSink(every_steps=0): a period is 1 step or more

    Raises:
        ValueError: for a period below 1.
    """

    key = ("console",)  # two of them would say everything twice

    def __init__(self, every_steps: int | None = None, stream: TextIO | None = None) -> None:
        check_period("ConsoleSink", "every_steps", "step", every_steps)
        self.every_steps = every_steps
        self.stream = stream
        self._rank = 0

    def begin(self, run: RunInfo) -> None:
        """A training begins."""
        self._rank = run.rank

    def write(self, sample: Sample) -> None:
        """Print the record's line when it is due."""
        if self.every_steps and sample.event == "step_end" and sample.step % self.every_steps == 0:
            self.say(_line(sample))

    def tell(self, finding: Finding) -> None:
        """Print a finding."""
        if finding.kind in _NOT_PRINTED or "verdict" in finding.data or not finding.text:
            return
        head = f"forgather-mem: step {finding.step}: "
        if self._rank and finding.kind in _FROM_EVERY_RANK:
            head = f"forgather-mem: rank {self._rank}, step {finding.step}: "
            self._print(_hanging(head, finding.text))
        else:
            self.say(_hanging(head, finding.text))

    def say(self, text: str) -> None:
        """Print a line as it is, on rank 0."""
        if not self._rank:
            self._print(text)

    def _print(self, text: str) -> None:
        _write(text, self.stream if self.stream is not None else sys.stderr)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print to standard output, or to `stream`, on rank 0 only, beside a progress bar: for those outside a run."""
    if _rank() == 0:
        _write(text, sys.stdout if stream is None else stream)


def _write(text: str, stream: TextIO | None) -> None:
    if stream is None:  # a process without a console
        return
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # not loaded: no bar to spare
    try:
        if tqdm is not None:
            tqdm.write(text + "\n", file=stream, end="")
        else:
            stream.write(text + "\n")  # in one piece, so that threads don't mix their lines
        stream.flush()  # the next thing that happens may be a kill
    except (OSError, ValueError):
        return  # closed, or a character it can't encode: a message is not worth a run


def _rank() -> int:
    """This process's number, for those who have no run that knows it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK") or 0)


def _hanging(head: str, text: str) -> str:
    first, *rest = text.splitlines()
    return "\n".join([head + first, *(" " * len("forgather-mem: ") + line.strip() for line in rest)])


def _line(sample: Sample) -> str:
    shown = [f"{word} {format_bytes(sample.values[name])}" for name, word in _SHOWN if name in sample.values]
    if not shown:
        rows = [(metric_of(name), value) for name, value in list(sample.values.items())[:3]]
        shown = [f"{row.name} {value * row.factor:.4g} {row.unit}" for row, value in rows]
    return f"forgather-mem: step {sample.step:,}: {', '.join(shown)}"
