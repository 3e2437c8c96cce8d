"""Plots for a self-contained page: scalable SVG with labels of fixed size."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from forgather_mem.errors import escape_controls
from forgather_mem.reporting.from_events import Curve
from forgather_mem.units import GIB, KIB, MIB, format_bytes

# Maximum number of stretches in a plot; with more points, the lowest and highest of each stretch are kept.
_MAX_STRETCHES = 500
_WIDTH, _HEIGHT = 1000, 300
_MAX_MARKS = 300


def escape(text: str) -> str:
    r"""The text as it stands in a page: without markup of its own, and without control characters.

    >>> escape("<b>\x1b[31m\n")
    '&lt;b&gt;\\x1b[31m\n'
    """
    return html.escape(escape_controls(text, keep="\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """One curve of a plot.

    Attributes:
        colour: Number of the colour, 1 to 7; the page's style sheet knows it.
        area: Fill the area below.
        stems: Draw each point as a vertical line, for occasional events.
    """

    label: str
    curve: Curve
    colour: int
    area: bool = False
    stems: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Events on the edge of a plot: pairs (step, label)."""

    label: str
    points: Sequence[tuple[int, str]]
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Curves over the steps of a run.

    Attributes:
        unit: "bytes" or "ms"; the curves are in bytes and seconds.
        over: What the curves are over, as one reads it at a point.
        limit: A dashed line, shown if it is close to the curves: label and value.
    """

    title: str
    lines: Sequence[PlotLine]
    unit: str = "bytes"
    over: str = "step"
    marks: Sequence[Marks] = field(default_factory=tuple)
    limit: tuple[str, float] | None = None


def plot_html(plot: Plot, first_step: int, last_step: int) -> str:
    """The plot with its legend; "" if it has no points."""
    lines = [line for line in plot.lines if line.curve.steps]
    if not lines:
        return ""
    highest = max(0.0, *(max(line.curve.values) for line in lines))
    limit = plot.limit if plot.limit is not None and highest > plot.limit[1] / 2 else None
    unit, factor = _unit(plot.unit, max(highest, limit[1] if limit else 0.0))
    ticks = nice_ticks(max(highest, limit[1] if limit else 0.0) * factor)
    scale = _Scale(first_step, max(last_step, first_step + 1), ticks[-1] / factor)
    shapes, legend, readings = [], [], []
    for tick in ticks:
        shapes.append(f'<path class="grid" d="M0,{scale.y(tick / factor)} L{_WIDTH},{scale.y(tick / factor)}"/>')
    for line in lines:
        points = thinned(line.curve)
        shapes += _shapes(line, points, scale)
        legend.append(f'<span><i class="key c{line.colour}"></i>{escape(line.label)}</span>')
        readings.append({"label": line.label, "points": [[step, round(value * factor, 3)] for step, value in points]})
    if limit is not None:
        shapes.append(f'<path class="limit" d="M0,{scale.y(limit[1])} L{_WIDTH},{scale.y(limit[1])}"/>')
        legend.append(f'<span><i class="key dashed"></i>{escape(limit[0])}</span>')
    marks = []
    for kind in (kind for kind in plot.marks if kind.points):
        legend.append(f'<span><i class="key mark c{kind.colour}"></i>{escape(kind.label)}</span>')
        for step, text in _some(kind.points):
            place = f"left:{scale.percent(step)}%"
            marks.append(f'<i class="mark c{kind.colour}" style="{place}" title="{escape(text)}"></i>')
    labels = [f'<span class="y" style="bottom:{100 * tick / ticks[-1]:.2f}%">{tick:,g}</span>' for tick in ticks]
    for step in step_ticks(scale.first, scale.last):
        labels.append(f'<span class="x" style="left:{scale.percent(step)}%">{step:,}</span>')
    data = escape(
        json.dumps({"unit": unit, "over": plot.over, "first": scale.first, "last": scale.last, "lines": readings})
    )
    return (
        f"<figure><figcaption><b>{escape(plot.title)}</b>, {unit}"
        f'<span class="legend">{"".join(legend)}</span></figcaption><div class="plot" data-plot="{data}">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{"".join(shapes)}</svg>'
        f"{''.join(marks)}{''.join(labels)}</div></figure>"
    )


def bar_html(parts: Sequence[tuple[str, int]]) -> str:
    """One bar of parts in their own colours, each with its size; "" without parts.

    >>> bar_html([("parameters", 0)])
    ''
    """
    total = sum(size for _, size in parts)
    if not total:
        return ""
    pieces, legend = [], []
    for colour, (label, size) in enumerate(parts, 1):
        if size:
            said = f"{label} {format_bytes(size)}"
            pieces.append(f'<i class="c{colour}" style="width:{100 * size / total:.2f}%" title="{escape(said)}"></i>')
            legend.append(f'<span><i class="key c{colour}"></i>{escape(said)}</span>')
    return f'<div class="bar">{"".join(pieces)}</div><div class="legend">{"".join(legend)}</div>'


def thinned(curve: Curve, most: int = 2 * _MAX_STRETCHES) -> list[tuple[int, float]]:
    """At most `most` points; of each stretch that is thinned, the lowest and the highest stay.

    >>> curve = Curve()
    >>> for step in range(10_000):
    ...     curve.add(step, 5.0 if step == 1234 else 1.0)
    >>> points = thinned(curve, 100)
    >>> len(points) <= 100, (1234, 5.0) in points
    (True, True)
    """
    steps, values = curve.steps, curve.values
    if len(steps) <= most:
        return list(zip(steps, values, strict=True))
    points = []
    num_stretches = most // 2
    for stretch in range(num_stretches):
        begin, end = (len(steps) * number // num_stretches for number in (stretch, stretch + 1))
        part = values[begin:end]
        low, high = part.index(min(part)), part.index(max(part))
        points += [(steps[begin + at], values[begin + at]) for at in sorted({low, high})]
    return points


def nice_ticks(highest: float) -> list[float]:
    """Round numbers from 0 to above `highest`.

    >>> nice_ticks(41.3), nice_ticks(0.36)
    ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    step = _nice(highest / 5) if highest > 1e-6 else 1.0  # the ticks have ten decimals
    return [round(step * number, 10) for number in range(math.ceil(round(highest / step, 6) or 1) + 1)]


def step_ticks(first: int, last: int) -> list[int]:
    """Round steps between the two.

    >>> step_ticks(0, 60), step_ticks(7, 9)
    ([0, 20, 40, 60], [7, 8, 9])
    """
    apart = max(1, round(_nice((last - first) / 4)))
    return list(range(math.ceil(first / apart) * apart, last + 1, apart))


class _Scale:
    """Maps steps and values to positions in the picture."""

    def __init__(self, first: int, last: int, highest: float) -> None:
        self.first, self.last = first, last
        self._highest = highest

    def x(self, step: int) -> float:
        return round(_WIDTH * (step - self.first) / (self.last - self.first), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT * (1 - value / self._highest), 1)

    def percent(self, step: int) -> str:
        return f"{100 * self.x(step) / _WIDTH:.2f}"


def _shapes(line: PlotLine, points: Sequence[tuple[int, float]], scale: _Scale) -> Iterable[str]:
    if line.stems:
        path = " ".join(f"M{scale.x(step)},{_HEIGHT} V{scale.y(value)}" for step, value in points if value > 0)
    else:
        path = "M" + " L".join(f"{scale.x(step)},{scale.y(value)}" for step, value in points)
    if line.area:
        ends = f"L{scale.x(points[-1][0])},{_HEIGHT} L{scale.x(points[0][0])},{_HEIGHT} Z"
        yield f'<path class="area c{line.colour}" d="{path} {ends}"/>'
    if len(points) == 1 and not line.stems:
        path += " h0"  # a dot
    yield f'<path class="line c{line.colour}" d="{path}"/>'


def _unit(unit: str, highest: float) -> tuple[str, float]:
    if unit == "ms":
        return "ms", 1e3
    for name, size in (("GiB", GIB), ("MiB", MIB)):
        if highest >= size / 4:
            return name, 1 / size
    return "KiB", 1 / KIB


def _nice(size: float) -> float:
    """The next larger of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * 0.999)


def _some(points: Sequence[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    """An even selection, if there are too many to be distinguished."""
    return points[:: max(1, math.ceil(len(points) / _MAX_MARKS))]
