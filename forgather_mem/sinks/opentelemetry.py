"""The last value of every metric through OpenTelemetry's SDK, and so to any backend that takes OTLP.

Needs the extra `forgather_mem[otel]`.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forgather_mem.system.forks import FORKS
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.metrics import FLOW, metric_of
from forgather_mem.telemetry.records import RunInfo, Sample
from forgather_mem.telemetry.triggers import check_seconds

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

_NO_NAME = re.compile(r"[^a-zA-Z0-9_.]")
_UNITS = {"_bytes": "By", "_s": "s"}
_MAX_NAME = 255
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"  # which needs the SDK
_LAST_EXPORT_S = 5.0


class OpenTelemetrySink:
    """Exports `forgather_mem.<name>` for each sample name, in bytes (By), seconds, fractions or counts (1).

    `host/rss_bytes` becomes `forgather_mem.host.rss`, `step/time_s` becomes `forgather_mem.step.time`; what is added in
    each step (pauses, freed bytes) is a counter, all else a gauge. Values are exported by a thread of its own, every
    `every_s` seconds and at the end; a record costs the training as much as a few dictionary entries, and a collector
    that does not answer costs it 5 s at the end. A process that was forked exports nothing.

    The resource has `host.name`, `process.pid`, `rank`, `world_size`, a `service.instance.id` and a `service.name`,
    "forgather_mem" unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says another; each point has the rank.

    Args:
        every_s: Seconds between two exports.
        readers: The SDK's metric readers, which then export when they like. Default: OTLP over HTTP to where
            `OTEL_EXPORTER_OTLP_ENDPOINT` and the other variables of OpenTelemetry say.

    Raises:
        ValueError: for seconds that are not above 0.
        ImportError: if OpenTelemetry is not installed.
    """

    def __init__(self, *, every_s: float = 15.0, readers: Sequence[MetricReader] | None = None) -> None:
        check_seconds("OpenTelemetrySink", every_s=every_s)
        try:
            importlib.import_module(_EXPORTER if readers is None else "opentelemetry.sdk.metrics")
        except ImportError as error:
            raise ImportError("OpenTelemetrySink needs OpenTelemetry: pip install 'forgather_mem[otel]'") from error
        self.every_s = every_s
        self.readers = readers
        # Equal for two sinks that would export to the same place
        self.key = "opentelemetry", None if readers is None else tuple(map(id, readers))
        self._forget()

    def _forget(self) -> None:
        self._forks = FORKS.number
        self._provider: MeterProvider | None = None
        self._thread: threading.Thread | None = None
        self._values: dict[str, float] = {}
        self._sums: dict[str, float] = {}  # of what is added in each step
        self._known: dict[str, bool] = {}  # of names that have an instrument, whether they are added up

    def begin(self, run: RunInfo) -> None:
        """A training begins: gauges of the one before are forgotten, counters go on."""
        self.end(run)
        if self._provider is None or self._forks != FORKS.number:
            self._forget()
            self._provider = _provider(run, self.readers)
        self._attributes = {"rank": run.rank}
        self._values.clear()
        if self.readers is None:
            self._over = threading.Event()
            given = (self._provider, self._over, self.every_s)
            self._thread = threading.Thread(target=_export, args=given, name="forgather-mem otel", daemon=True)
            self._thread.start()

    def write(self, sample: Sample) -> None:
        """Keep the values until they are exported."""
        provider = self._provider
        if self._forks != FORKS.number or provider is None:
            return
        for name, value in (("step", sample.step), *sample.values.items()):
            is_flow = self._known.get(name)
            if is_flow is None:
                is_flow = self._known[name] = self._instrument(name, provider.get_meter("forgather_mem"))
            if is_flow:
                self._sums[name] = self._sums.get(name, 0.0) + value
            else:
                self._values[name] = value

    def end(self, run: RunInfo) -> None:
        """The training is over: export the last values."""
        thread, self._thread = self._thread, None
        if thread is not None and self._forks == FORKS.number:
            self._over.set()
            thread.join(_LAST_EXPORT_S)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(type(self), every_s=self.every_s, readers=self.readers), ()

    def _instrument(self, name: str, meter: Meter) -> bool:
        from opentelemetry.metrics import Observation

        metric = metric_of(name)
        end = next((end for end in _UNITS if name.endswith(end)), "")
        base = _NO_NAME.sub("_", name.removesuffix(end).replace("/", "."))
        is_flow = metric.kind == FLOW
        create = meter.create_observable_counter if is_flow else meter.create_observable_gauge
        meaning = "Optimizer steps done." if name == "step" else metric.meaning
        values = self._sums if is_flow else self._values

        def read(options: CallbackOptions) -> list[Observation]:
            return [Observation(values[name], self._attributes)] if name in values else []

        create(f"forgather_mem.{base}"[:_MAX_NAME], callbacks=[read], unit=_UNITS.get(end, "1"), description=meaning)
        return is_flow


def _provider(run: RunInfo, readers: Sequence[MetricReader] | None) -> MeterProvider:
    """A provider of our own, so that nobody else's metrics go where ours go."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    given = Resource.create()  # from the environment
    host = socket.gethostname()
    ours: dict[str, str | int] = {
        "host.name": host,
        "process.pid": os.getpid(),
        "service.instance.id": f"{host}:{os.getpid()}",
        "rank": run.rank,
        "world_size": run.world_size,
    }
    if str(given.attributes.get("service.name", "")).startswith("unknown_service"):
        given = given.merge(Resource({"service.name": "forgather_mem"}))
    if readers is None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        # No thread of its own, which each forked data worker would start again
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=math.inf)]
    return MeterProvider(metric_readers=list(readers), resource=Resource(ours).merge(given), shutdown_on_exit=False)


def _export(provider: MeterProvider, over: threading.Event, every_s: float) -> None:
    guard, is_over = FailureGuard(), False
    while not is_over:
        is_over = over.wait(every_s)
        guard.call("the export to OpenTelemetry", provider.force_flush)  # that nobody answers is logged by the SDK
