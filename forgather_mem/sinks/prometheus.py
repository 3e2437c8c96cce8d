"""The last value of every metric in a file for Prometheus, which node exporter's textfile collector reads."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from forgather_mem.errors import ours
from forgather_mem.files import replace_file
from forgather_mem.telemetry.metrics import FLOW, Metric, metric_of
from forgather_mem.telemetry.records import RunInfo, Sample
from forgather_mem.telemetry.triggers import check_seconds

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")


class PrometheusSink:
    """Writes `forgather_mem_<name>` for each sample name, in bytes, seconds, fractions or counts, with the rank.

    `host/rss_bytes` becomes `forgather_mem_host_rss_bytes`, `step/time_s` becomes `forgather_mem_step_time_seconds`;
    what is added in each step (pauses, freed bytes) is a counter that ends with `_total`. The file is replaced as a
    whole, at most every `every_s` seconds, and at the end.

    Args:
        path: The file; node exporter reads those of its folder that end in .prom. With several ranks, each but rank 0
            puts its own beside it: `train.rank1.prom`.
        every_s: Seconds between two writings.

    Raises:
        ValueError: for a path that does not end in .prom, or seconds that are not above 0.
    """

    def __init__(self, path: str | os.PathLike[str], *, every_s: float = 15.0) -> None:
        if not str(path).endswith(".prom"):
            raise ValueError(f"PrometheusSink({str(path)!r}): its file ends in .prom, which node exporter reads")
        check_seconds("PrometheusSink", every_s=every_s)
        self.path = Path(path)
        self.every_s = every_s
        self.key = "prometheus", str(self.path)  # equal for two sinks that would write the same file
        self._begin(0)

    def begin(self, run: RunInfo) -> None:
        """A training begins: values of the one before are forgotten."""
        self._begin(run.rank)

    def write(self, sample: Sample) -> None:
        """Keep the values, and write them if it is time."""
        self._values["step"] = sample.step
        for name, value in sample.values.items():
            is_flow = metric_of(name).kind == FLOW
            self._values[name] = self._values.get(name, 0.0) + value if is_flow else value
        if time.monotonic() >= self._next_s:
            self._write()

    def end(self, run: RunInfo) -> None:
        """The training is over: write the last values."""
        if self._values:
            self._write()
        self._values.clear()

    def problems(self) -> str | None:
        """Why the file is not what it should be; None if it is."""
        return self._problem

    def _begin(self, rank: int) -> None:
        self._rank = rank
        self._values: dict[str, float] = {}
        self._next_s = 0.0
        self._problem: str | None = None

    def _write(self) -> None:
        self._next_s = time.monotonic() + self.every_s
        path = self.path.with_suffix(f".rank{self._rank}.prom") if self._rank else self.path
        # Of two names that become one the first counts: node exporter refuses a file that has a metric twice
        texts = {_name(key, metric_of(key)): (key, value) for key, value in sorted(self._values.items(), reverse=True)}
        text = "".join(_lines(known, *named, self._rank) for known, named in reversed(texts.items()))
        try:
            replace_file(path, text.encode())
            self._problem = None
        except ours(OSError) as error:
            self._problem = f"Prometheus: {path}: {error.strerror or error}"


def _lines(known: str, name: str, value: float, rank: int) -> str:
    metric = metric_of(name)
    kind = "counter" if metric.kind == FLOW else "gauge"
    meaning = "Optimizer steps done." if name == "step" else metric.meaning
    help_text = meaning.replace("\\", "\\\\").replace("\n", " ")
    return f'# HELP {known} {help_text}\n# TYPE {known} {kind}\n{known}{{rank="{rank}"}} {value!r}\n'


def _name(name: str, metric: Metric) -> str:
    base = f"{name[:-2]}_seconds" if name.endswith("_s") else name
    return f"forgather_mem_{_NO_NAME.sub('_', base)}" + ("_total" if metric.kind == FLOW else "")
