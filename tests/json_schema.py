"""Compares JSON values with docs/report.schema.json: the few words of JSON Schema that it uses."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "report.schema.json"
TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
KNOWN = {
    "$schema", "title", "description", "$defs", "$ref", "anyOf", "enum", "type", "properties", "required", "items",
    "additionalProperties", "minItems", "maxItems", "minimum", "maximum",
}  # fmt: skip


@cache
def schema() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def assert_fits(report: Any) -> None:
    """A report is plain JSON, and as its schema says."""
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert list(faults(report, schema(), "report")) == []


def faults(value: Any, wanted: dict[str, Any], place: str) -> Iterator[str]:
    assert set(wanted) <= KNOWN, wanted
    if "$ref" in wanted:
        yield from faults(value, schema()["$defs"][wanted["$ref"].removeprefix("#/$defs/")], place)
    elif "anyOf" in wanted:
        ways = [list(faults(value, way, place)) for way in wanted["anyOf"]]
        yield from min(ways, key=len)
    elif "enum" in wanted and value not in wanted["enum"]:
        yield f"{place}: {value!r} is none of {wanted['enum']}"
    elif wanted.get("type") == "array":
        within = isinstance(value, list) and wanted.get("minItems", 0) <= len(value) <= wanted.get("maxItems", 10**9)
        yield from [] if within else [f"{place}: {value!r} is no such array"]
        for number, row in enumerate(value if within else ()):
            yield from faults(row, wanted["items"], f"{place}[{number}]")
    elif wanted.get("type") == "object":
        yield from _of_object(value, wanted, place)
    elif "type" in wanted:
        fits = isinstance(value, TYPES[wanted["type"]]) and (wanted["type"] == "boolean") == isinstance(value, bool)
        if not fits or not wanted.get("minimum", value) <= value <= wanted.get("maximum", value) if value else not fits:
            yield f"{place}: {value!r} is not {wanted}"


def _of_object(value: Any, wanted: dict[str, Any], place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: {value!r} is no object"
        return
    yield from (f"{place}.{name} is missing" for name in wanted.get("required", ()) if name not in value)
    known, others = wanted.get("properties", {}), wanted.get("additionalProperties", {})
    for name, part in value.items():
        yield from faults(part, known.get(name, others), f"{place}.{name}")
