"""The peaks of a run: its own in each kind of memory, and those of its phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forgather_mem.engine.summary import GaugeRange, RunSummary, is_spanned
from forgather_mem.telemetry.events import PHASE_NUMBER, STEP_PHASES
from forgather_mem.telemetry.metrics import name_on_current, other_device
from forgather_mem.telemetry.report import Peak
from forgather_mem.units import KIB

_OF_HOST = ("host/rss_peak_bytes", "host/rss_bytes")
# The peaks of the run and of a phase come from two kernel counters, which differ by a few pages per CPU.
_SAME_FRAC = 0.99
# What a phase finds there is in its peak, too, and a few pages come with any: up to 12 KiB in scripts that kept nothing
_SAME_BYTES = 64 * KIB
# Phases are not read at every step: of the steps, so many have to lack a reading before that is told.
_HIDDEN_STEPS, _HIDDEN_FRAC = 20, 0.1


def report_peaks(summary: RunSummary) -> Iterator[Peak]:
    """For host and devices, the run's peak, then those of the measured phases; highest first."""
    places = [("host", "host"), *((family, f"gpu{index}") for family, index in device_families(summary))]
    for family, where in places:
        whole, training = highest_of(summary, family), highest_of(summary, family, but="startup")
        found = [
            Peak(
                where=where,
                bytes=int(span.highest),
                step=span.step,
                phase=phase,
                not_read_since=_not_read_since(summary, phase, span, whole),
            )
            for (place, phase), span in summary.phases.items()
            if place == family and phase != "startup"
        ]
        most = max(found, key=lambda peak: peak.bytes, default=None)
        alike = most.bytes - _SAME_BYTES if most else 0  # of those so high the first in time is the run's
        found.sort(key=lambda peak: (-min(peak.bytes, alike), peak.step, PHASE_NUMBER.get(peak.phase, 0)))
        last = summary.last_step + bool(summary.facts.error)  # what comes after it is data of no step
        found = [replace(peak, step=min(peak.step, last)) if peak.phase == "data" else peak for peak in found]
        # Phases are not read at every step: where the mark rose in a later one, its phase is not known
        if most and most.bytes >= training.highest * (_SAME_FRAC if most.step >= training.step else 1):
            found[0] = replace(found[0], bytes=max(most.bytes, int(training.highest)))
        elif training.highest:
            phase = training.phase or "other"
            found.insert(0, Peak(where=where, bytes=int(training.highest), step=training.step, phase=phase))
        yield from _with_startup(summary, family, found)


def device_families(summary: RunSummary) -> Iterator[tuple[str, int]]:
    """The families of sample names of this process's devices with their indices, the current device first."""
    if "device/allocated_bytes" in summary.spans:
        yield "device", summary.device or 0
    others = [other_device(name) for name in summary.spans]
    for index in sorted({other[0] for other in others if other is not None and other[1] == "device/allocated_bytes"}):
        yield f"device{index}", index


def devices_by_shares(summary: RunSummary) -> Iterator[tuple[int, tuple[str, int]]]:
    """Index, name and size of the devices in use, as far as their shares tell: from curves and logs."""
    for name, frac in summary.latest.items():
        if frac > 0 and name_on_current(name) == "device/reserved_frac":
            other, family = other_device(name), name.partition("/")[0]
            reserved_bytes = summary.latest.get(f"{family}/reserved_bytes", 0.0)
            yield (summary.device or 0) if other is None else other[0], ("", round(reserved_bytes / frac))


def highest_of(summary: RunSummary, place: str, but: str = "") -> GaugeRange:
    """The highest of the gauges and of the phases but one: an evaluation after the last step is in a phase only."""
    gauges = _OF_HOST if place == "host" else (f"{place}/step_peak_bytes", f"{place}/allocated_bytes")
    spans = [span_of(summary, name) for name in gauges]
    spans += [
        GaugeRange(span.highest, span.highest, span.highest, span.step, phase)
        for (where, phase), span in summary.phases.items()
        if where == place and phase != but
    ]
    return max(spans, key=lambda span: span.highest)  # on a tie, the first


def span_of(summary: RunSummary, name: str) -> GaugeRange:
    assert is_spanned(name), f"{name} must stand in REPORTED of engine/summary.py"
    return summary.spans.get(name) or GaugeRange(0.0, 0.0, 0.0, 0)


def _with_startup(summary: RunSummary, family: str, found: list[Peak]) -> list[Peak]:
    """The peaks with that of the startup among them: the run's only where it is clearly above the training's."""
    startup = summary.phases.get((family, "startup"))
    if startup is None or not found:
        return found
    # The first step of an observed loop is heard at its end: it may have been then
    step = startup.step if summary.facts.header.is_observed else 0
    peak = Peak(where=found[0].where, bytes=int(startup.highest), step=step, phase="startup")
    if _SAME_FRAC * peak.bytes > found[0].bytes:
        return [peak, *found]
    found[0] = replace(found[0], bytes=max(found[0].bytes, peak.bytes))
    return sorted([*found, peak], key=lambda peak: -peak.bytes)


def _not_read_since(summary: RunSummary, phase: str, span: GaugeRange, whole: GaugeRange) -> int | None:
    """The last step that could tell this phase of every step, if a higher peak elsewhere has hidden it for long."""
    hidden = phase in STEP_PHASES and span.highest < _SAME_FRAC * whole.highest
    steps_since = summary.last_step - span.read
    return span.read if hidden and steps_since > max(_HIDDEN_STEPS, _HIDDEN_FRAC * summary.steps) else None
