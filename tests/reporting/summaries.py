"""Summaries of a run on a GPU, and of one on a CPU."""

from dataclasses import replace

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report import LedgerRow
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.units import GIB, MIB


def read(
    summary: RunSummary, step: int, values: dict[str, float], *, event: str = "step_end", device: int | None = None
) -> None:
    summary.add(Sample(event=event, step=step, epoch=None, time_s=0.0, values=values, device=device))


def gpu_run() -> RunSummary:
    header = RunHeader(
        script="/home/me/train.py", argv=("--lr", "1e-4"), limit_bytes=64 * GIB, limit_kind="cgroup", event_folder="out"
    )
    devices = {0: ("NVIDIA H100 80GB HBM3", int(79.6 * GIB))}
    facts = RunFacts(header, wall_s=1860.0, end="finished", devices=devices)
    summary = RunSummary(facts)
    summary.begin(0)
    device = {"device/allocated_bytes": 9.1 * GIB, "device/reserved_bytes": 9.4 * GIB}
    read(summary, 0, {"host/rss_bytes": 6.2 * GIB, **device}, event="train_begin", device=0)
    read(summary, 500, {"host/rss_bytes": 6.3 * GIB, "host/rss_peak_bytes": 8.8 * GIB})
    read(summary, 500, {"phase/host/save_peak_bytes": 8.8 * GIB}, event="save")
    parts = {"tensors/parameters_bytes": 5.0 * GIB, "tensors/gradients_bytes": 5.0 * GIB}
    phases = {"phase/device/forward_peak_bytes": 40.0 * GIB, "phase/device/backward_peak_bytes": 41.3 * GIB}
    device = {"device/allocated_bytes": 15.0 * GIB, "device/reserved_bytes": 52.0 * GIB}
    whole = {**device, **phases, **parts, "device/step_peak_bytes": 41.3 * GIB, "tensors/optimizer_bytes": 10.0 * GIB}
    read(summary, 1998, whole, device=0)
    end = {"gc/pause_max_s": 0.4, "gc/pause_total_s": 7.1, "gc/collections": 20.0, "host/rss_bytes": 6.3 * GIB}
    read(summary, 2000, end, device=0)
    summary.self_s = 5.6
    row = LedgerRow(what="clear", calls=20, time_s=0.4, freed_bytes=3 * GIB)
    summary.told = replace(summary.told, ledger=(row,))
    return summary


def cpu_run(end: str | None = "finished") -> RunSummary:
    header = RunHeader(script="train.py", limit_bytes=16 * GIB, started_s=1.0, event_folder="out/runs/a")
    facts = RunFacts(header, wall_s=21.0, end=end)
    summary = RunSummary(facts)
    summary.begin(100)
    read(summary, 100, {"host/rss_bytes": 600 * MIB}, event="train_begin")
    parts = {"tensors/parameters_bytes": 10 * MIB, "tensors/gradients_bytes": 10 * MIB}
    phases = {"phase/host/forward_peak_bytes": 770 * MIB, "phase/host/backward_peak_bytes": 800 * MIB}
    host = {"host/rss_bytes": 620 * MIB, "host/rss_peak_bytes": 800 * MIB}
    read(summary, 112, {**host, **phases, **parts, "tensors/optimizer_bytes": 20 * MIB})
    read(summary, 160, {"host/rss_bytes": 610 * MIB})
    summary.self_s = 0.01
    return summary
