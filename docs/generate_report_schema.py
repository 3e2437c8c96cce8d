"""Writes docs/report.schema.json, the JSON Schema of the report, from the classes in forgather_mem/telemetry/report.py.

    python docs/generate_report_schema.py

A test compares the committed file with what this gives; run it after a change of the classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import ReportPart
from forgather_mem.telemetry.report_schema import keys_of, without_none

FILE = Path(__file__).with_name("report.schema.json")
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The whole schema; each part has a definition of its own."""
    parts: dict[str, Any] = {}
    top = of_part(RunReport, parts)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "The report of forgather_mem, schema 1"}
    return head | top | {"$defs": dict(sorted(parts.items()))}


def of_part(part: type[ReportPart], parts: dict[str, Any]) -> dict[str, Any]:
    keys = keys_of(part)
    return {
        "description": str(part.__doc__).partition("\n")[0],
        "type": "object",
        "properties": {name: of_kind(key.kind, parts) for name, key in keys.items()},
        "required": [name for name, key in keys.items() if not key.added],
    }


def of_kind(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    only, may_be_none = without_none(kind)
    if may_be_none:
        return {"anyOf": [of_kind(only, parts), {"type": "null"}]}
    origin, inner = get_origin(only), get_args(only)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is Annotated:
        return {"type": PLAIN[inner[0]], "minimum": inner[1], "maximum": inner[2]}
    if origin is tuple and inner[-1] is not ...:
        return {"type": "array", "items": of_kind(inner[0], parts), "minItems": len(inner), "maxItems": len(inner)}
    if origin is tuple:
        return {"type": "array", "items": of_kind(inner[0], parts)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": of_kind(inner[1], parts)}
    if only in PLAIN or only is object:
        return {} if only is object else {"type": PLAIN[only]} | ({"minimum": 0} if only is int else {})
    if only.__name__ not in parts:
        parts[only.__name__] = {}  # it may hold itself
        parts[only.__name__] = of_part(only, parts)
    return {"$ref": f"#/$defs/{only.__name__}"}


def text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
