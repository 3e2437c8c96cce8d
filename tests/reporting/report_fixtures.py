"""Reports with made-up numbers, for the texts: those of the texts that were promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.reporting.build import build_report, write_report
from forgather_mem.reporting.merge_ranks import merge_ranks
from forgather_mem.reporting.run_dir import killed_report
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import from_dict, to_dict
from forgather_mem.units import GIB, KIB, MIB
from tests.json_schema import assert_fits


def report_of(script: str, steps: int, wall_s: float, end: str | None, **parts: Any) -> dict[str, Any]:
    """A report with these parts changed; a dict changes only what is in it."""
    summary = RunSummary(RunFacts(RunHeader(script=script), wall_s=wall_s, end=end))
    summary.begin(0)
    summary.last_step = steps
    report = built(summary)
    for key, value in parts.items():
        if isinstance(value, dict) and isinstance(report[key], dict):
            report[key].update(value)
        else:
            report[key] = value
    return report


def built(summary: RunSummary) -> dict[str, Any]:
    """The report as users see it, compared with its schema."""
    report = to_dict(build_report(summary))
    assert_fits(report)
    return report


def parsed(report: dict[str, Any]) -> RunReport:
    """The report as it is read from a file."""
    return from_dict(RunReport, json.loads(json.dumps(report)))


def text_of(report: dict[str, Any], *arguments: Any, **options: Any) -> str:
    return report_text(parsed(report), *arguments, **options)


def written(report: dict[str, Any], folder: Path) -> Path:
    return write_report(parsed(report), folder)


def killed_by(report: dict[str, Any], signal: int) -> dict[str, Any]:
    report = to_dict(killed_report(parsed(report), signal))
    assert_fits(report)
    return report


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    report = to_dict(merge_ranks([parsed(report) for report in reports]))
    assert_fits(report)
    return report


def gib(size: float) -> int:
    return int(size * GIB)


def gpu_sizes() -> dict[str, Any]:
    return {
        "device": [
            {
                "name": "H100", "index": 0, "total_bytes": gib(79.6),
                "allocated_start_bytes": gib(9.1), "allocated_end_bytes": gib(15.0),
                "peak_allocated_bytes": gib(41.3), "reserved_start_bytes": gib(9.4),
                "reserved_end_bytes": gib(52.0), "peak_reserved_bytes": gib(52.0),
            }
        ],
        "host": {
            "rss_start_bytes": gib(6.2), "rss_end_bytes": gib(6.3), "rss_peak_bytes": gib(8.8),
            "limit_bytes": gib(64), "limit_kind": "cgroup",
        },
        "peaks": [
            {"where": "host", "bytes": gib(8.8), "step": 500, "phase": "save"},
            {"where": "gpu0", "bytes": gib(41.3), "step": 1998, "phase": "backward"},
        ],
        "overhead": {"seconds": 5.6, "share_of_run": 0.003},
    }  # fmt: skip


def all_well() -> dict[str, Any]:
    return report_of(
        "train.py",
        2000,
        1860.0,
        "finished",
        **gpu_sizes(),
        run={"exit_code": 0, "folder": "out/forgather_mem", "event_folder": "out"},
        leak={"verdict": "no leak", "bytes_per_step_high": 4.0 * KIB},
        advice=[
            {
                "text": "batch 15 would still fit (now 8), limited by the backward pass",
                "set": {"per_device_train_batch_size": 15},
                "predicted_bytes": gib(77),
            }
        ],
    )


def leaking() -> dict[str, Any]:
    suspect = {
        "type": "list",
        "bytes_per_step": 3.125 * MIB,
        "count_per_step": 1.0,
        "count": 1940,
        "bytes": int(5.92 * GIB),
        "held_by": "Trainer.kept_logits",
        "allocated_at": "train.py:41",
        "source_line": "self.kept_logits.append(outputs.logits.detach())",
        "each": "Tensor [8, 128, 800] float32 on cuda:0",
        "whose": "user",
        "cure": "keep less, and off the GPU: outputs.logits.argmax(-1).cpu()",
    }
    return report_of(
        "train.py",
        2000,
        1860.0,
        "finished",
        **gpu_sizes(),
        run={"exit_code": 0, "folder": "out/forgather_mem", "event_folder": "out"},
        gc={"collections": 400, "pause_total_s": 71.2, "pause_max_s": 0.4},
        cleanup_calls=[
            {
                "what": "gc.collect",
                "file": "train.py",
                "line": 77,
                "calls": 400,
                "seconds": 71.0,
                "freed_bytes": 0,
                "whose": "user",
            }
        ],
        leak={
            "verdict": "leak",
            "where": "device",
            "bytes_per_step": 3.1 * MIB,
            "bytes_per_step_low": 3.0 * MIB,
            "bytes_per_step_high": 3.2 * MIB,
            "since_step": 60,
            "suspects": [suspect],
            "sure": "yes",
        },
    )


def out_of_memory() -> dict[str, Any]:
    in_use = {
        "activations": 46.2, "optimizer": 15.0, "parameters": 7.5, "gradients": 7.5, "CUDA and libraries": 1.9,
        "other": 0.3,
    }  # fmt: skip
    return report_of(
        "train.py",
        1203,
        1140.0,
        "oom",
        **gpu_sizes(),
        oom={
            "where": "device",
            "step": 1204,
            "phase": "forward",
            "rank": 0,
            "layer": "model.lm_head",
            "requested_bytes": gib(3.91),
            "free_bytes": gib(1.2),
            "reserved_unused_bytes": gib(0.3),
            "in_use": {part: gib(size) for part, size in in_use.items()},
            "why_now": "the longest batch so far, 8 x 4,096 tokens; until then at most 8 x 2,310, peak 60.5 GiB.",
            "not_because": ["Not a leak (flat since step 20)", "Not fragmentation (0.3 GiB unusable)"],
            "advice": [],
            "fit": "line fitted to 1,203 steps, 37 batch shapes; keeps 2 % free",
            "no_help": "empty_cache, expandable_segments (nothing to give back).",
        },
        advice=[
            {
                "text": "per_device_train_batch_size=4, gradient_accumulation_steps=2",
                "set": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
                "predicted_bytes": gib(57),
            },
            {"text": "max length 3,700 at batch 8", "set": {}, "predicted_bytes": gib(78)},
            {
                "text": "gradient_checkpointing=True",
                "set": {"gradient_checkpointing": True},
                "predicted_bytes": None,
                "note": "fewer activations, slower; not measured",
            },
        ],
    )


def killed() -> dict[str, Any]:
    return report_of(
        "train.py",
        7310,
        7440.0,
        "killed",
        host={
            "rss_start_bytes": gib(20),
            "rss_end_bytes": gib(21.4),
            "rss_peak_bytes": gib(21.4),
            "limit_bytes": gib(64),
            "limit_kind": "cgroup",
        },
        killed={
            "signal": 9,
            "oom_kill_before": 0,
            "oom_kill_after": 1,
            "step": 7310,
            "phase": "evaluate",
            "used_bytes": gib(63.6),
            "process_bytes": gib(21.4),
            "workers_bytes": gib(42.2),
            "num_workers": 8,
            "process_bytes_per_step": 0.0,
            "workers_bytes_per_step": 5.9 * MIB,
            "since_step": 1,
        },
        leak={
            "verdict": "leak",
            "where": "workers",
            "sure": "likely",
            "suspects": [
                {
                    "type": "list",
                    "bytes_per_step": 5.9 * MIB,
                    "count_per_step": 0.0,
                    "count": 4_100_000,
                    "held_by": "Samples.rows",
                    "allocated_at": "data.py:23",
                    "source_line": "",
                    "signature": "",
                    "whose": "user",
                    "cure": "rows as one array or Arrow table",
                }
            ],
        },
        advice=[{"text": "until then num_workers=4 (-21 GiB)", "set": {}, "predicted_bytes": None}],
    )
