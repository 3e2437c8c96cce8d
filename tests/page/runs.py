"""Made-up runs for the page, as reports and readings with known sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forgather_mem.formats.jsonl import finding_line, header_line, sample_line
from forgather_mem.page.data import page_data
from forgather_mem.page.readings import Readings
from forgather_mem.telemetry.records import Finding, Sample
from forgather_mem.units import GIB, MIB
from tests.reporting.report_fixtures import all_well, leaking, out_of_memory, parsed

HOSTILE = '"><img src=x onerror="window.bad=1"></script><script>window.bad=1</script>\u202e\x1b[31m'


def numbers(packed: list[int | None], unit: float = 1024) -> list[float | None]:
    return [None if number is None else number * unit for number in packed]


def parts_of(data: Mapping[str, Any], place: str) -> dict[str, list[float | None]]:
    (stack,) = [stack for stack in data["stacks"] if stack["place"] == place]
    return {part["key"]: numbers(part["values"]) for part in stack["parts"]}


def readings_of(rows: list[tuple[str, int, dict[str, float]]]) -> Readings:
    readings = Readings()
    readings.started_s = 1000.0
    for event, step, values in rows:
        readings.add(event, step, 1000.0 + step, values.items())
    return readings


def on_a_gpu(num_steps: int, seed: int = 0) -> Readings:
    """A long training on a GPU and its host: all of it noisy, with an evaluation and a clear every so often."""
    noise = np.random.default_rng(seed).random((num_steps, 8))
    readings = Readings()
    readings.started_s = 990.0
    period = max(1, num_steps // 20)
    for at in range(num_steps):
        a, b, c, d, e, f, g, h = noise[at].tolist()
        held = (15 + a) * GIB + 3 * MIB * min(at, 2000)
        values = {
            "device/allocated_bytes": held, "device/reserved_bytes": held + (12 + b) * GIB,
            "device/step_peak_bytes": held + (10 + c) * GIB, "host/rss_bytes": (6 + d) * GIB,
            "host/anon_bytes": (5 + e / 2) * GIB, "host/rss_peak_bytes": 7.5 * GIB + at * 1000,
            "gc/pause_s": f / 100, "phase/device/forward_peak_bytes": held + 6 * GIB * g,
            "phase/device/backward_peak_bytes": held + (10 + c) * GIB, "phase/device/optimizer_peak_bytes": held + h,
        }  # fmt: skip
        if at % 10 == 0:
            values |= {"tensors/parameters_bytes": 7.5 * GIB, "tensors/optimizer_bytes": 6.0 * GIB}
            values |= {"tensors/gradients_bytes": 3.0 * GIB}
        if at % period == period // 2:
            values |= {"cache/time_s": 0.04, "cache/freed_bytes": 3.0 * GIB}
        readings.add("step_end", at + 1, 1000.0 + at / 10, values.items())
        if at % period == period - 1:
            readings.add("evaluate", at + 1, 1000.0 + at / 10, [("phase/device/evaluate_peak_bytes", held + 12 * GIB)])
    return readings


def gpu_data(num_steps: int, kind: str = "leak", **changes: Any) -> dict[str, Any]:
    report = {"leak": leaking, "well": all_well, "oom": out_of_memory}[kind]()
    for key, value in changes.items():
        report[key] = value
    return dict(page_data(parsed(report), on_a_gpu(num_steps)))


def hostile_data() -> dict[str, Any]:
    """A run all of whose names try to become part of the page."""
    report = leaking()
    report["run"].update(script=HOSTILE, argv=[HOSTILE], folder=HOSTILE, versions={HOSTILE: HOSTILE})
    report["switched_off"] = [HOSTILE]
    report["cleanup_calls"][0]["file"] = HOSTILE
    report["leak"]["suspects"][0].update(
        held_by=HOSTILE, source_line=HOSTILE, cure=HOSTILE, each=HOSTILE, allocated_at=HOSTILE, type=HOSTILE
    )
    readings = on_a_gpu(60)
    readings.findings.append(Finding(kind="alert", step=30, text=HOSTILE))
    return dict(page_data(parsed(report), readings, name=HOSTILE))


def written_log(folder: Path, rank: int, rows: list[tuple[str, int, dict[str, float]]], **header: Any) -> Path:
    """The same rows as a log."""
    lines = [header_line(rank, {"pid": 2**22 + 7, "process_started_s": 990.0, **header})]
    for event, step, values in rows:
        lines.append(sample_line(Sample(event, step, None, 1000.0 + step, values)))
    lines.append(finding_line(Finding(kind="alert", step=2, text="host/rss_bytes is 9 GiB")))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"memory.rank{rank}.jsonl"
    path.write_bytes(b"".join(lines))
    return path
