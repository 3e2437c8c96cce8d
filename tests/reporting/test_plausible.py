"""No figure of a report is contradicted by the report's own shape, type or peak."""

import re

from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.reporting.plausible import plausible
from forgather_mem.reporting.text import report_text
from forgather_mem.telemetry.report import HostMemory, LeakReport, LeakSuspect, RunReport
from forgather_mem.units import parse_bytes

_SIZE = re.compile(r"\d[\d,.]* (?:B|[KMGT]iB)\b")
_ITEMS = {"float32": 4, "bfloat16": 2, "bool": 1, "int64": 8}
_SIZES = st.integers(0, 40).map(lambda power: 2**power)
_SUSPECTS = st.builds(
    lambda sides, kind, **facts: LeakSuspect(
    type="list", held_by="kept", each=f"Tensor {sides} {kind} on cpu", **facts ),
    sides=st.lists(st.integers(1, 512), max_size=3), kind=st.sampled_from(sorted(_ITEMS)), bytes_per_step=_SIZES,
    count_per_step=st.sampled_from([0.0, 0.5, 1.0, 20.0]), count=_SIZES, bytes=st.none() | _SIZES,
)  # fmt: skip


@given(st.lists(_SUSPECTS, min_size=1, max_size=3), st.integers(2, 400), _SIZES.filter(lambda size: size > 2**20))
def test_what_is_told_of_a_holder_fits_below_the_peak_and_to_shape_and_type(
    suspects: list[LeakSuspect], steps: int, peak: int
) -> None:
    # A list of ten lines of code was told as 100,000 items and 18.6 GiB at a peak of 0.46 GiB
    leak = LeakReport(verdict="leak", where="tensors", bytes_per_step=peak / steps / 2, suspects=tuple(suspects))
    report = plausible(RunReport(steps=steps, host=HostMemory(rss_peak_bytes=peak), leak=leak))
    text = report_text(report, width=400)
    for line in text.splitlines():
        sizes = [parse_bytes(size.replace(",", "")) for size in _SIZE.findall(line)]
        if line.startswith("  held by"):
            assert all(size <= peak * 1.01 for size in sizes), line
        elif line.startswith("  each is") and sizes:
            sides, kind = re.search(r"\[(.*)\] (\w+)", line).groups()  # type: ignore[union-attr]
            told = _ITEMS[kind]
            for side in filter(None, sides.split(", ")):
                told *= int(side)
            assert sizes[-1] >= 0.94 * told, line
    assert all(one.bytes_per_step * steps <= peak for one in report.leak.suspects)
    assert not any(one.count_per_step and one.count is None for one in report.leak.suspects), "they go together"
