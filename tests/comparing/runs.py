"""Reports of runs with chosen sizes, in MiB."""

from collections.abc import Mapping
from typing import Any

from forgather_mem.comparing.comparison import Comparison, comparison_of
from forgather_mem.comparing.side import Side
from forgather_mem.reporting.build import planned_of
from forgather_mem.telemetry.report import (
    Breakdown,
    DeviceMemory,
    HostMemory,
    LeakReport,
    LeakSuspect,
    Peak,
    RunReport,
    Training,
)  # fmt: skip

MIB = 2**20


def run(
    peak: float = 500, *, settings: Mapping[str, str] | None = None, steps: int = 100, leak: LeakReport | None = None,
    workers: float = 0, held: float = 0, counted: bool = True,
    planned: Mapping[str, Mapping[str, float]] | None = None, phases: Mapping[str, float] | None = None,
    versions: Mapping[str, str] | None = None, **parts: float,
) -> RunReport:  # fmt: skip
    """A run whose parts are those of a small model where nothing else is said; what they leave of the peak is other.

    Without `counted`, activations are known as a rise of resident memory only. A plan is given by phase and part.
    """
    sizes = {"parameters": 12, "gradients": 12, "optimizer": 24, "activations_peak": 76, **parts}
    whole = {name: int(size * MIB) for name, size in sizes.items()}
    whole.setdefault("other", max(0, int(peak * MIB) - sum(whole.values())))
    ended = sizes["parameters"] + sizes["optimizer"] + held
    passes = {"startup": 350, "forward": peak - 5, "backward": peak, "optimizer": peak - 10, **(phases or {})}
    passes = dict(sorted(passes.items(), key=lambda told: -told[1]))
    return RunReport(
        steps=steps,
        run=Training(
            settings=settings or {"model.dtype": "float32"}, versions=versions or {"torch": "2.13.0"}, end="finished"
        ),
        host=HostMemory(
            rss_peak_bytes=int(peak * MIB),
            workers_peak_bytes=int(workers * MIB),
            allocated_start_bytes=int(sizes["parameters"] * MIB) if counted else 0,
            allocated_end_bytes=int(ended * MIB) if counted else 0,
            activations_bytes=whole["activations_peak"] if counted else 0,
        ),
        breakdown=Breakdown(**whole),
        peaks=tuple(Peak(where="host", bytes=int(size * MIB), step=3, phase=name) for name, size in passes.items()),
        planned=None if planned is None else planned_of(plan(planned)),
        leak=leak or LeakReport(verdict="no leak", judged=True),
    )


def plan(sizes: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """A plan with these parts in each phase, as `plan --json` writes it."""
    phases = [
        {
            "step": 2, "phase": phase, "bytes": int(sum(parts.values()) * MIB),
            "parts": {name: int(size * MIB) for name, size in parts.items()},
        }
        for phase, parts in sizes.items()
    ]  # fmt: skip
    highest = max(phases, key=lambda row: int(row["bytes"]))  # type: ignore[call-overload]
    return {"peak_bytes": highest["bytes"], "phase": highest["phase"], "phases": phases, "rows": 8, "length": 128}


def on_device(allocated: float) -> RunReport:
    """The same on a device with so much allocated at the peak."""
    sizes = {"peak_allocated_bytes": int(allocated * MIB), "peak_reserved_bytes": int(allocated * MIB)}
    plain = run()
    card = DeviceMemory(name="card", total_bytes=8 * 2**30, **sizes)
    peak = Peak(where="gpu0", bytes=int(allocated * MIB), step=3, phase="backward")
    return RunReport(
        steps=100, run=plain.run, host=plain.host, device=(card,), breakdown=plain.breakdown, peaks=(peak, *plain.peaks)
    )


def leaking(held_by: str = "Trainer.losses", mib_per_step: float = 2.0) -> LeakReport:
    """A leak from step 10 on."""
    suspect = LeakSuspect(
        type="Tensor", bytes_per_step=mib_per_step * MIB, count_per_step=1.0, held_by=held_by,
        allocated_at="train.py:41", signature=f"list {held_by}",
    )  # fmt: skip
    return LeakReport(
        verdict="leak", where="tensors", bytes_per_step=mib_per_step * MIB, since_step=10, suspects=(suspect,),
        sure="yes", judged=True,
    )  # fmt: skip


def compared(before: RunReport, after: RunReport) -> Comparison:
    return comparison_of(Side("a", [before]), Side("b", [after]))
