"""What OpenTelemetry's SDK has of a training, read with its own reader, and what a collector gets over HTTP."""

import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from forgather_mem.sinks import OpenTelemetrySink
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Sample
from tests.sinks.plain_run import PlainRun, begun
from tests.sinks.written import sample

export = pytest.importorskip("opentelemetry.sdk.metrics.export", reason="the extra otel is not installed")


def read(reader: Any) -> tuple[dict[str, Any], dict[str, tuple[str, str, float]]]:
    """Attributes of the resource; kind, unit and value by name."""
    data = reader.get_metrics_data()
    if data is None:
        return {}, {}
    (resource,) = data.resource_metrics
    found = {}
    for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
        (point,) = metric.data.data_points
        found[metric.name] = (type(metric.data).__name__, metric.unit, point.value)
        assert dict(point.attributes) == {"rank": 1}
        assert metric.description
    return dict(resource.resource.attributes), found


def exporting() -> tuple[OpenTelemetrySink, Any]:
    """A sink in a training, and what reads it."""
    reader = export.InMemoryMetricReader()
    sink = begun(OpenTelemetrySink(readers=[reader]), rank=1, world_size=4)
    return sink, reader


def test_gauges_and_counters_by_our_table_with_the_host_and_the_rank() -> None:
    sink, reader = exporting()
    sink.write(sample(1, host__rss_bytes=2.0**30, step__time_s=0.5, gc__pause_s=0.25, host__limit_used_frac=0.5))
    sink.write(sample(2, host__rss_bytes=2.0**31, gc__pause_s=0.5, mine__odd=3.0))
    attributes, found = read(reader)
    assert found == {
        "forgather_mem.host.rss": ("Gauge", "By", 2.0**31),
        "forgather_mem.step.time": ("Gauge", "s", 0.5),
        "forgather_mem.gc.pause": ("Sum", "s", 0.75),
        "forgather_mem.host.limit_used_frac": ("Gauge", "1", 0.5),
        "forgather_mem.mine.odd": ("Gauge", "1", 3.0),
        "forgather_mem.step": ("Gauge", "1", 2),
    }
    assert {name: attributes[name] for name in ("host.name", "process.pid", "rank", "world_size", "service.name")} == {
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        "rank": 1,
        "world_size": 4,
        "service.name": "forgather_mem",
    }


def test_a_second_training_forgets_gauges_and_its_counters_go_on() -> None:
    (sink, reader), run = exporting(), PlainRun(rank=1)
    for _ in range(2):
        sink.begin(run)
        sink.write(sample(1, gc__pause_s=0.25))
        sink.end(run)
    sink.begin(run)
    assert read(reader)[1] == {"forgather_mem.gc.pause": ("Sum", "s", 0.5)}
    assert pickle.loads(pickle.dumps(OpenTelemetrySink(readers=[], every_s=3.0))).every_s == 3.0


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,team=vision")
    sink, reader = exporting()
    sink.write(sample(1))
    attributes, _ = read(reader)
    assert (attributes["service.name"], attributes["team"]) == ("mine", "vision")


def test_no_two_metrics_of_our_table_have_one_name(caplog: pytest.LogCaptureFixture) -> None:
    sink, reader = exporting()
    names = [metric.name for metric in every_metric()]
    sink.write(Sample(event="step_end", step=1, epoch=None, time_s=0.0, values=dict.fromkeys(names, 1.0)))
    assert len(read(reader)[1]) == len(names) + 1
    assert caplog.records == []


def test_arguments_are_checked_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        OpenTelemetrySink(every_s=0, readers=[])
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ImportError, match=r"pip install 'forgather_mem\[otel\]'"):
        OpenTelemetrySink()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, float]]]:
    """A collector's address in the environment; the gauges of each export that it has got."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="the exporter of the extra is missing"
    )
    posted: list[dict[str, float]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = service.ExportMetricsServiceRequest.FromString(body)
            metrics = request.resource_metrics[0].scope_metrics[0].metrics
            points = {metric.name: metric.gauge.data_points[0] for metric in metrics}
            posted.append({name: point.as_double or point.as_int for name, point in points.items()})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_last_values_are_at_the_collector_when_the_training_has_ended(collector: list[dict[str, float]]) -> None:
    sink, run = OpenTelemetrySink(every_s=3600), PlainRun(rank=1)
    for training in (1, 2):
        sink.begin(run)
        sink.write(sample(training, host__rss_bytes=training * 2.0**30))
        sink.end(run)
        sink.end(run)
        assert collector[-1] == {"forgather_mem.step": training, "forgather_mem.host.rss": training * 2.0**30}
    assert len(collector) == 2


def test_a_forked_data_worker_exports_nothing(collector: list[dict[str, float]]) -> None:
    sink, run = OpenTelemetrySink(every_s=0.01), PlainRun(rank=1)
    sink.begin(run)
    sink.write(sample(1, host__rss_bytes=1.0))
    while not collector:
        threading.Event().wait(0.01)
    child = os.fork()
    if child == 0:
        sink.write(sample(2, host__rss_bytes=1.0))
        threading.Event().wait(0.1)
        sink.end(run)
        os._exit(threading.active_count() - 1)
    assert os.waitpid(child, 0)[1] == 0, "no thread has begun there"
    sink.end(run)
    assert {export["forgather_mem.step"] for export in collector} == {1}
