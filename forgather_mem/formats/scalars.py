"""Reads the scalars in event files, of one process or a whole folder, with TensorBoard's own message classes."""

from __future__ import annotations

import contextlib
import functools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.files import open_regular
from forgather_mem.formats.event_file import payloads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Points = tuple[array[int], array[float], array[float]]  # steps, times and values of a tag

MOST_POINTS = 4_000_000  # more than a page of a million steps has of one tag; 24 bytes and 1.5 us each


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarSeries:
    """One tag's points in writing order; a step written twice appears twice."""

    steps: NDArray[np.int64]
    wall_times_s: NDArray[np.float64]
    values: NDArray[np.float64]


def read_scalars(*paths: str | Path, wanted: Callable[[str], bool] | None = None) -> dict[str, ScalarSeries]:
    """All scalars of event files, or of the event files directly in a folder, in the order of their names, by tag.

    Reads what `add_scalar` (either style) and `TensorBoardSink` write; other summaries are skipped. A torn end is left
    out. Takes 1.5 s per million scalars, and reads no more than `MOST_POINTS`.

    Args:
        paths: Files, or folders.
        wanted: Whether a tag's points are to be kept; default: all.

    Raises:
        OSError: a file can't be read, or is no regular file.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    is_wanted = functools.cache(wanted or (lambda tag: True))
    points: defaultdict[str, _Points] = defaultdict(lambda: (array("q"), array("d"), array("d")))
    number = 0
    for path in _event_files(paths):
        with open_regular(path) as file:
            for payload in payloads(file):
                with contextlib.suppress(DecodeError):
                    event = Event.FromString(payload)
                    step, wall_time_s = event.step, event.wall_time
                    for value in event.summary.value:
                        tag = value.tag
                        if is_wanted(tag) and number < MOST_POINTS:
                            scalar = value.simple_value or _scalar_of(value)
                            if scalar is not None:
                                number += 1
                                steps, times_s, values = points[tag]
                                steps.append(step)
                                times_s.append(wall_time_s)
                                values.append(scalar)
    return {tag: _series(*found) for tag, found in points.items()}


def _series(steps: array[int], times_s: array[float], values: array[float]) -> ScalarSeries:
    import numpy as np

    return ScalarSeries(steps=np.array(steps), wall_times_s=np.array(times_s), values=np.array(values))


def _event_files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if "tfevents" in p.name and p.is_file() and not p.is_symlink())
        else:
            yield path


def _scalar_of(value: Any) -> float | None:
    """The number of a summary's value: its own, or that of a one-element tensor, as newer writers store it."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or any(dimension.size != 1 for dimension in value.tensor.tensor_shape.dim):
        return None  # of many numbers, however few stand there
    from tensorboard.util.tensor_util import make_ndarray

    try:
        numbers = make_ndarray(value.tensor)
        return float(numbers.item()) if numbers.size == 1 else None
    except (TypeError, ValueError):
        return None
