"""Live output for a person at the terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from forgather_mem.errors import escape_controls, missing, stream_for_people
from forgather_mem.telemetry.metrics import metric_of
from forgather_mem.telemetry.records import Finding, RunInfo, Sample
from forgather_mem.telemetry.run_session import rank_and_size
from forgather_mem.telemetry.triggers import check_period
from forgather_mem.units import format_bytes

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

# What a line shows of a record, if present: sample name and label.
_SHOWN = (
    ("host/rss_bytes", "host"),
    ("device/allocated_bytes", "allocated"),
    ("device/reserved_bytes", "reserved"),
    ("device/step_peak_bytes", "peak"),
)
# Characters that aren't printable, but do no harm: the ends of lines, tabs, spaces that don't break, joined letters.
_KEPT = "\n\t\xa0\u202f\u200c\u200d"
# These are in the run's report, which is printed separately; an alert has already printed its line.
_NOT_PRINTED = ("verdict", "backed_off", "cleanup_calls", "advice", "alert", "settings")
# A failing rank also prints, with its number.
_FROM_EVERY_RANK = ("oom", "exception")


class ConsoleSink:
    """Prints findings and, on request, a short line every N steps, without disturbing the progress bar.

    Rank 0 prints; another rank prints only its failure. A stream that is closed or can't encode a character is not an
    error.

    Args:
        every_steps: Print a line of the record at every Nth step. Default: never.
        stream: The output stream. Default: the current `sys.stderr`, so that a script's own stdout is left alone; in a
            notebook, where that is red, `sys.stdout`.

    >>> ConsoleSink(every_steps=0)
    Traceback (most recent call last):
    ...
    ValueError: ConsoleSink(every_steps=0): a period is 1 step or more

    Raises:
        ValueError: for a period below 1.
    """

    key = ("console",)  # two of them would print everything twice

    def __init__(self, every_steps: int | None = None, stream: TextIO | None = None) -> None:
        check_period("ConsoleSink", "every_steps", "step", every_steps)
        self.every_steps = every_steps
        self.stream = stream
        self._rank = 0

    def begin(self, run: RunInfo) -> None:
        """A training begins."""
        self._rank = run.rank

    def write(self, sample: Sample) -> None:
        """Print the record's line if it is due."""
        if self.every_steps and sample.event == "step_end" and sample.step % self.every_steps == 0:
            self.say(_line(sample))

    def tell(self, finding: Finding) -> None:
        """Print a finding."""
        if finding.kind in _NOT_PRINTED or "verdict" in finding.data or not finding.text:
            return
        if not self._rank or finding.kind in _FROM_EVERY_RANK:
            of_rank = f"rank {self._rank}, " if self._rank else ""
            self._print(_hanging(f"forgather-mem: {of_rank}step {finding.step}: ", finding.text))

    def say(self, text: str) -> None:
        """Print a line, on rank 0, with control characters written out."""
        if not self._rank:
            self._print(text)

    def _print(self, text: str) -> None:
        _write(text, self.stream if self.stream is not None else stream_for_people())


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print to standard output, or to `stream`, on rank 0 only, above a progress bar; for code outside a run."""
    if rank_and_size()[0] == 0:
        _write(text, sys.stdout if stream is None else stream)


def at_end_of_cell(do: Callable[[], object]) -> None:
    """Call this when the cell of a notebook that runs has ended; at once where none does."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or getattr(shell.displayhook, "exec_result", None) is None:
        do()
    else:
        at_next(shell, "post_run_cell", do)


def at_next(shell: InteractiveShell, event: str, do: Callable[[], object]) -> None:
    """Call this at the next event of this kind of IPython's."""

    def once(_: object) -> None:
        shell.events.unregister(event, once)
        do()

    shell.events.register(event, once)


def _write(text: str, stream: TextIO | None) -> None:
    if stream is None:  # a process without a console
        return
    text = escape_controls(text, keep=_KEPT)  # a name in it may be anybody's
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # not loaded: there is no bar
    with missing(OSError, ValueError):  # closed, or can't encode a character: a message must not end a run
        if tqdm is not None:
            tqdm.write(text + "\n", file=stream, end="")
        else:
            stream.write(text + "\n")  # in one call, so that threads don't mix their lines
        stream.flush()  # the process may be killed next


def _hanging(head: str, text: str) -> str:
    first, *rest = text.splitlines()
    indent = " " * len("forgather-mem: ")
    first = textwrap.fill(head + first, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join([first, *(indent + line.strip() for line in rest)])


def _line(sample: Sample) -> str:
    shown = [f"{word} {format_bytes(sample.values[name])}" for name, word in _SHOWN if name in sample.values]
    if not shown:
        rows = [(metric_of(name), value) for name, value in list(sample.values.items())[:3]]
        shown = [f"{row.name} {value * row.factor:.4g} {row.unit}".removesuffix(" count") for row, value in rows]
    return f"forgather-mem: step {sample.step:,}: {', '.join(shown)}"
