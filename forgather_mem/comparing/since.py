"""The step from which on two runs are apart, read from their curves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forgather_mem.formats.jsonl import log_files, some_samples
from forgather_mem.reporting.from_events import event_series

# The curve that shows a part; of all others the peak so far, which rises with them
CURVES = {
    **{part: f"tensors/{part}_bytes" for part in ("parameters", "gradients", "optimizer")},
    "data workers": "workers/pss_bytes",
}
_PEAKS = {"host": "host/rss_peak_bytes", "device": "device/step_peak_bytes"}

Points = Sequence[tuple[int, float]]
Curves = Mapping[str, Points]


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The highest value so far by step, of each curve that shows a part; nothing of what can't be read."""
    names = {*CURVES.values(), *_PEAKS.values()}
    found: dict[str, list[tuple[int, float]]] = {}
    with contextlib.suppress(OSError):
        for step, values in _records(folder, names):
            for name in names & values.keys():
                points = found.setdefault(name, [])
                points.append((step, max(values[name], points[-1][1] if points else 0.0)))
    return found


def step_apart(before: Curves, after: Curves, part: str, place: str, size: float) -> int | None:
    """The step of the jump from which on `after` has at least half of its difference.

    Args:
        before, after: Their curves.
        part: Its name.
        place: "host" or "device", for a part that has no curve of its own.
        size: The difference in bytes; a curve that shows less than half of it shows something else.

    Returns:
        None if they are apart from the beginning, if the difference grows steadily, or if the curves don't show it.

    >>> old, new = [(step, 5.0) for step in range(100)], [(step, 5.0 + 4.0 * (step > 60)) for step in range(100)]
    >>> step_apart({"host/rss_peak_bytes": old}, {"host/rss_peak_bytes": new}, "activations", "host", 4.0)
    61
    """
    name = CURVES.get(part) or _PEAKS[place]
    apart = list(_differences(before.get(name, ()), after.get(name, ())))
    if not apart or size == 0 or apart[-1][1] / size < 0.5:
        return None
    steps, shares = [step for step, _ in apart], [more / apart[-1][1] for _, more in apart]
    # What a jump is was judged by hand, on the changes of benchmarks/compare.py. Of few readings nothing is said; what
    # takes longer than this from a little to most of it, and more than two readings, grows; and who parts in the first
    # steps has been apart from the beginning.
    little, half, most = (_start_of_end(shares, share) for share in (0.25, 0.5, 0.75))
    few_steps = 0.1 * (steps[-1] - steps[0])
    is_short = most == little or steps[most] - steps[max(0, little - 1)] <= few_steps
    return steps[half] if len(apart) >= 8 and is_short and steps[half] - steps[0] > few_steps else None


def _start_of_end(shares: Sequence[float], least: float) -> int:
    """The place from which on all have at least so much."""
    return len(shares) - sum(1 for _ in itertools.takewhile(lambda share: share >= least, reversed(shares)))


def _differences(before: Points, after: Points) -> Iterator[tuple[int, float]]:
    """At each step of both how much more `after` has."""
    known = iter(before)
    old = following = next(known, None)
    for step, value in after:
        while following is not None and following[0] <= step:
            old, following = following, next(known, None)
        if old is not None and old[0] <= step and (following is not None or old[0] == step):
            yield step, value - old[1]


def _records(folder: Path, names: set[str]) -> Iterator[tuple[int, Mapping[str, float]]]:
    logs = log_files(folder)
    if logs:
        for path in logs[min(logs)]:
            yield from ((sample.step, sample.values) for sample in some_samples(path, 2_000))  # evenly spaced
        return
    for name, curve in event_series(folder).items():
        points = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
        yield from ((step, {name: value}) for step, value in points)
