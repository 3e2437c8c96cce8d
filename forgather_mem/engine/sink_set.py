"""The sinks of a run: each begins once, none can end a training, and the console prints for all."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forgather_mem.engine.summary import RunSummary
from forgather_mem.sinks import ConsoleSink
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.plain_numbers import plain_numbers
from forgather_mem.telemetry.records import Finding, RunInfo, Sample, Sink


class SinkSet:
    """The sinks that have joined a run, in the order in which they came. See `FullSink` for what is called."""

    def __init__(self, fence: FailureGuard) -> None:
        self._fence = fence
        self._sinks: list[Sink] = []
        self._console: ConsoleSink | None = None  # our own

    def add(self, sink: Sink, run: RunInfo) -> None:
        """Begin with this sink, unless one with the same key is there."""
        if self._console in self._sinks and hasattr(sink, "say"):
            self._sinks.remove(self._console)  # the user's own replaces it
        key = getattr(sink, "key", None)
        if any(known is sink or (key is not None and getattr(known, "key", None) == key) for known in self._sinks):
            return
        self._sinks.append(sink)
        try:
            if hasattr(sink, "begin"):
                sink.begin(run)
        except Exception as error:  # it does not know where to write
            self._sinks.remove(sink)
            name = f"{type(sink).__name__}.begin"
            if not self._fence.keeps(name, error):
                raise
            self._fence.switched_off.append(f"{name} failed, so that it writes nothing: {error!r:.200}")
            self._fence.call_part(sink, "end", run)

    def write(self, sample: Sample) -> None:
        for sink in self._sinks:
            self._fence.call_part(sink, "write", sample)

    def tell(self, finding: Finding) -> None:
        for sink in self._sinks:
            self._fence.call_part(sink, "tell", finding)

    def say(self, text: str, run: RunInfo) -> None:
        """Print through the first sink that can; through our own console if there is none."""
        console: Any = next((sink for sink in self._sinks if hasattr(sink, "say")), None)
        if console is None:
            console = self._console = ConsoleSink()
            self.add(console, run)
        console.say(text)

    def numbers(self, method: str, make: Callable[[], object]) -> dict[str, float]:
        """What the sinks with this method add to the trainer's own log line; plain numbers only.

        Args:
            method: "log_values", or for the line of an evaluation "evaluation_values".
            make: Makes its argument, if a sink has the method.
        """
        values: dict[str, float] = {}
        asked = [sink for sink in self._sinks if hasattr(sink, method)]
        argument = make() if asked else None
        for sink in asked:
            new = self._fence.call_part(sink, method, argument)
            values.update(self._fence.call(f"{type(sink).__name__}.{method}", plain_numbers, new) or {})
        return values

    def collect_problems(self, summary: RunSummary) -> None:
        """Put into the summary what could not be written."""
        for sink in self._sinks:
            problem = self._fence.call_part(sink, "problems")
            told = self._fence.call(f"{type(sink).__name__}.problems", str, problem) if problem else None
            summary.switched_off += [told] if told else []

    def event_folder(self) -> str | None:
        """Where TensorBoard finds what was written."""
        found = [self._fence.call(f"{type(one).__name__}.folder", getattr, one, "folder", None) for one in self._sinks]
        return next((folder for folder in reversed(found) if folder), None)

    def calls(self, method: str, *arguments: object) -> Iterator[Callable[[], object]]:
        """Call this method of each sink, one call for each."""
        return (functools.partial(self._fence.call_part, sink, method, *arguments) for sink in self._sinks)

    def clear(self) -> None:
        self._sinks.clear()


def evaluation_prefix(names: Iterable[str]) -> str:
    """What all names of an evaluation's line begin with, as transformers and Lightning write them; else nothing.

    >>> evaluation_prefix(["eval_loss", "eval_runtime", "epoch"]), evaluation_prefix(["eval_mnli_loss", "eval_mnli_f1"])
    ('eval_', 'eval_mnli_')
    >>> evaluation_prefix(["loss", "learning_rate", "epoch"])
    ''
    """
    words = zip(*(name.split("_")[:-1] for name in names if name != "epoch"), strict=False)
    shared = [word[0] for word in itertools.takewhile(lambda word: len(set(word)) == 1, words)]
    return "_".join([*shared, ""]) if shared and shared[0] in ("eval", "test", "val") else ""
