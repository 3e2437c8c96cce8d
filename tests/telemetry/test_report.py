"""The classes of the report as values; `test_report_schema` has their way into JSON and back."""

from dataclasses import MISSING, fields

import pytest

from forgather_mem.telemetry import report
from forgather_mem.telemetry.report import Breakdown, DeviceMemory
from forgather_mem.telemetry.report_part import ReportPart

PARTS = [part for part in vars(report).values() if isinstance(part, type) and issubclass(part, ReportPart)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_key_that_came_later_has_a_value_where_an_older_file_lacks_it(part: type[ReportPart]) -> None:
    later = [one for one in fields(part) if one.metadata.get("added")]
    assert [one.name for one in later if one.default is MISSING and one.default_factory is MISSING] == []
    assert [one.name for one in later if not one.metadata.keys() <= {"added", "rare"}] == []


def test_the_sizes_that_people_read_are_all_that_memory_consisted_of() -> None:
    names = [one.name for one in fields(Breakdown)]
    breakdown = Breakdown(**{name: number for number, name in enumerate(names)})  # type: ignore[arg-type]
    assert breakdown.sizes() == {name.removesuffix("_peak"): number for number, name in enumerate(names)}


def test_a_device_is_named_as_in_the_peaks() -> None:
    sizes = {"peak_allocated_bytes": 1, "peak_reserved_bytes": 2, "total_bytes": 3}
    assert DeviceMemory(name="GPU", index=3, **sizes).where == "gpu3"  # type: ignore[arg-type]
