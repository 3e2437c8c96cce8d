"""What is measured: the one table of sample names, their TensorBoard tags, units and meaning, from `metrics.txt`.

A sample holds bytes, seconds, fractions and counts under the names on the left (used in rules); TensorBoard shows GiB,
ms and per cent under the tags. docs/metrics.md, the tag descriptions and the checks of `Above("...")` all come from
this table.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from forgather_mem.errors import did_you_mean
from forgather_mem.telemetry.events import PHASES
from forgather_mem.units import GIB

# A gauge is a current value; a flow was added since the last record, and is summed within one; a total only grows.
GAUGE, FLOW, TOTAL = "gauge", "flow", "total"
_MAX_DIGITS = 4  # of a device's index


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One measured quantity.

    Attributes:
        name: Sample name, as used in rules. A `{}` stands for a phase name.
        tag: TensorBoard tag without the group prefix `mem_`; `gpu` in it becomes `gpu{i}`.
        factor: Converts the sample value to the tag's unit.
        unit: The unit on the TensorBoard page.
        kind: GAUGE, FLOW or TOTAL.
        running: "max" or "min" if the tag shows the run's extreme so far instead of the value.
        cadence: "slow" for gauges that are read only now and then, at whichever event they are due: these have one tag,
            while others have one for the steps and one for each other event at which they are read.
        extreme_tag: A second tag with the run's maximum so far, for gauges that spike (TensorBoard keeps
            1000 random points of a tag, so a spike alone would vanish).
        meaning: Formula and source, one sentence.
    """

    name: str
    tag: str
    factor: float
    unit: str
    meaning: str
    kind: str = GAUGE
    running: str = ""
    cadence: str = ""
    extreme_tag: str = ""


# By the end of a sample name: that of its tag, the factor to the tag's unit, and the unit
_UNITS = {"_bytes": ("_gib", 1 / GIB, "GiB"), "_frac": ("_pct", 100.0, "%"), "_s": ("_ms", 1e3, "ms")}


def _row(name: str, meaning: str, *, tag: str = "", factor: str = "", unit: str = "", **more: str) -> Metric:
    """A metric whose tag, factor and unit follow from its name, where they are not given.

    TensorBoard groups by the first segment only: a tag has one slash.
    """
    suffix = next((one for one in _UNITS if name.endswith(one)), "")
    shown, usual_factor, usual_unit = _UNITS.get(suffix, ("", 1.0, "count"))
    group, _, rest = name.partition("/") if "/" in name else ("custom", "", name)
    usual_tag = f"{'gpu' if group == 'device' else group}/{rest.replace('/', '_').removesuffix(suffix)}{shown}"
    return Metric(
        name=name,
        tag=tag or usual_tag,
        factor=float(factor or usual_factor),
        unit=unit or usual_unit,
        meaning=meaning,
        **more,
    )


def _table() -> Iterator[Metric]:
    file = os.path.join(os.path.dirname(__file__), "metrics.txt")
    table: str = __loader__.get_data(file).decode()  # type: ignore[name-defined]  # from an archive, too
    for entry in table.split("\n\n")[1:]:  # behind the comment
        (name, *settings), *meaning = map(str.split, entry.splitlines())
        yield _row(name, " ".join(itertools.chain(*meaning)), **dict(setting.split("=") for setting in settings))


METRICS = tuple(_table())

_BY_NAME = {metric.name: metric for metric in METRICS}


def every_metric() -> Iterator[Metric]:
    """The table's rows, those of phases once for each phase."""
    for row in METRICS:
        if "{}" in row.name:
            yield from (metric_of(row.name.format(phase)) for phase in PHASES)
        else:
            yield row


def metric_of(name: str) -> Metric:
    """The table's row for a sample name; a user-defined name gets a row by its suffix.

    >>> metric_of("host/rss_bytes").tag, metric_of("phase/host/save_peak_bytes").tag
    ('host/rss_gib', 'phase_host/save_gib')
    >>> metric_of("device1/headroom_bytes").tag
    'gpu1/headroom_gib'
    >>> metric_of("mine/cache_bytes").tag, metric_of("queue_len").tag
    ('mine/cache_gib', 'custom/queue_len')
    """
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    other = other_device(name)
    if other is not None and (found := _BY_NAME.get(other[1])) is not None:
        tag, extreme = (one.replace("gpu/", f"gpu{other[0]}/") for one in (found.tag, found.extreme_tag))
        return replace(found, name=name, tag=tag, extreme_tag=extreme)
    return _phase_metric(name) or _row(name, "A metric of your own.")


def other_device(name: str) -> tuple[int, str] | None:
    """For a metric of another device than the current one: that device's index, and the current device's metric.

    >>> other_device("device1/headroom_bytes"), other_device("device/headroom_bytes")
    ((1, 'device/headroom_bytes'), None)
    """
    family, _, rest = name.partition("/")
    index = family.removeprefix("device")
    if index == family or not rest or not (index.isascii() and index.isdecimal() and len(index) <= _MAX_DIGITS):
        return None
    return int(index), f"device/{rest}"


def name_on_current(name: str) -> str:
    """The name of this metric for the current device; of anything else, its own.

    >>> name_on_current("device12/reserved_bytes"), name_on_current("host/rss_bytes")
    ('device/reserved_bytes', 'host/rss_bytes')
    """
    other = other_device(name) if name.startswith("device") else None
    return name if other is None else other[1]


def _phase_metric(name: str) -> Metric | None:
    for where in ("host", "device"):
        head, tail = f"phase/{where}/", "_peak_bytes"
        if name.startswith(head) and name.endswith(tail):
            row, phase = _BY_NAME[f"{head}{{}}{tail}"], name[len(head) : -len(tail)]
            return _row(name, row.meaning, tag=row.tag.format(phase))
    return None


def check_name(name: str) -> None:
    """Refuse a misspelt name of one of our own families; user-defined families pass.

    Raises:
        ValueError: with the closest name, or the family's names.
    """
    family = name_on_current(name).split("/")[0]
    known = [known for known in _BY_NAME if known.startswith(family + "/")]
    if not known or name_on_current(name) in _BY_NAME or _phase_metric(name) is not None:
        return
    hint = did_you_mean(name, known) or f"{family}/ has: {', '.join(known)}"
    raise ValueError(f"there is no sample named {name!r}; {hint}")
