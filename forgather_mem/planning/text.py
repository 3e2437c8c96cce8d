"""A plan as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgather_mem.units import format_bytes

_WIDTH = 80
_BAR = 40


def plan_text(
    peak_bytes: int, phase: str, step: int, parts: Mapping[str, int], shape: str, notes: Iterable[str]
) -> str:
    """The peak, when it is, a bar for each part, and notes."""
    batch = f", batch {shape}" if shape else ""
    lines = [f"Peak {format_bytes(peak_bytes)} of tensors, {phase}, step {step}{batch}."]
    for name, size in sorted(parts.items(), key=lambda row: -row[1]):
        bar = "#" * round(_BAR * size / max(1, peak_bytes))
        lines.append(f"  {name:<12} {format_bytes(size):>11}  {bar}".rstrip())
    return "\n".join([*lines, *notes])
