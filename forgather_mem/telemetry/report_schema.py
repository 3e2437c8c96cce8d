"""The report's classes as JSON and back, and the one check of everything that is read from a file.

A file may come from a stranger, from a newer version, or from a disk that failed. What is not as it should be is
replaced by what stands there when nothing was measured, and named; a row of a list that has a wrong part is left
out. Keys that this version does not know are passed over.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from forgather_mem.errors import ours
from forgather_mem.files import read_regular
from forgather_mem.telemetry.bounds import MOST, bounded_text, is_number
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_part import ReportPart

# The report of 4,000 ranks takes 3 MB.
MAX_REPORT_BYTES = 4 * 2**20
_MAX_DEPTH, _MAX_NAMED = 20, 3
_MAX_ROWS = 100_000

P = TypeVar("P", bound=ReportPart)
T = TypeVar("T")


class Key(NamedTuple):
    """A key of a part.

    Attributes:
        kind: The type of its value.
        default: Its value where nothing was measured.
        added: Whether a file may lack it.
        rare: Whether it is written only if it is not the default.
    """

    kind: object
    default: object
    added: bool
    rare: bool


def keys_of(part: type) -> dict[str, Key]:
    """The keys of a part by name, in the order in which they are written."""
    return _keys_of(part)


@functools.cache
def _keys_of(part: type) -> dict[str, Key]:
    kinds = get_type_hints(part, include_extras=True)
    return {one.name: _key(one, kinds[one.name]) for one in fields(part)}


def _key(one: Field[object], kind: object) -> Key:
    if one.default_factory is not MISSING:
        default = one.default_factory()
    else:
        default = _default(kind) if one.default is MISSING else one.default
    return Key(kind, default, "added" in one.metadata, "rare" in one.metadata)


def to_dict(part: ReportPart) -> dict[str, Any]:
    """A part of the report as plain JSON values, for users and for files."""
    values = ((name, getattr(part, name), key) for name, key in keys_of(type(part)).items())
    return {name: _plain(value) for name, value, key in values if not key.rare or value != key.default}


def _plain(value: object) -> object:
    if isinstance(value, ReportPart):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(row) for row in value]
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def from_dict(part: type[P], value: object, wrong: list[str] | None = None, place: str = "") -> P:
    """The part that stands in these plain values; the place of each that is not as it should be goes to `wrong`."""
    wrong = [] if wrong is None else wrong
    if not isinstance(value, dict):
        wrong.append(place)
        value = {}
    keys, head = keys_of(part), f"{place}." if place else ""
    fitted = {name: key.default for name, key in keys.items()}
    for name, inner in value.items():
        before, key = len(wrong), keys.get(name)
        if key is not None:
            new = _fit(inner, key.kind, head + name, wrong)
            if not key.added or len(wrong) == before:
                fitted[name] = new
    wrong += [head + name for name, key in keys.items() if name not in value and not key.added]
    return part(**fitted)


def checked(kind: type[T], value: object) -> T | None:
    """The part, or the tuple of parts, that stands in these plain values; None if anything is not as it should be."""
    wrong: list[str] = []
    found: T = _fit(value, kind, "", wrong)
    return None if wrong else found


def read_report(path: str | Path, *, follow: bool = False) -> tuple[RunReport | None, list[str]]:
    """The report in a file; where there is none that can be used None, and a sentence that says why.

    A link is followed on request only: for a name that a person has typed.
    """
    name = Path(path).name
    try:
        report = checked_report(json.loads(read_regular(path, MAX_REPORT_BYTES, follow=follow)))
    except FileNotFoundError:
        return None, []
    except ours(OSError) as error:
        return None, [f"{name}: {error.strerror or error}"]
    except (ValueError, RecursionError):
        return None, [f"{name}: it holds no JSON"]
    return report, [f"{name}: it holds no report of schema 1"] * (report is None)


def checked_report(value: object) -> RunReport | None:
    """A report, with a sentence in its `left_out` for what of it was wrong; None for what is none at all."""
    if not isinstance(value, dict) or value.get("schema") != 1 or not isinstance(value.get("run"), dict):
        return None
    wrong: list[str] = []
    report = from_dict(RunReport, value, wrong)
    if report.ranks is None or report.spread is None or report.missing_ranks is None:
        report = replace(report, ranks=None, spread=None, missing_ranks=None)
    return replace(report, left_out=(*_sentence(wrong), *report.left_out))


def without_none(kind: object) -> tuple[object, bool]:
    """The type without None, and whether it may be None."""
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    (only,) = (one for one in get_args(kind) if one is not NoneType)
    return only, True


def _fit(value: object, kind: object, place: str, wrong: list[str]) -> Any:
    only, may_be_none = without_none(kind)
    if may_be_none:
        before = len(wrong)
        is_table = isinstance(value, dict) or not _is_part(only)
        fitted = None if value is None else _fit(value, only, place, wrong)
        # Of a part that is there the rest is kept
        return fitted if is_table and (len(wrong) == before or _is_part(only)) else None
    if isinstance(kind, type) and _is_part(kind):
        return from_dict(kind, value, wrong, place)
    kinds = get_args(kind)
    if get_origin(kind) is tuple and isinstance(value, list) and (kinds[-1] is ... or len(value) == len(kinds)):
        rows = ((number, row, f"{place}[{number}]") for number, row in enumerate(value[:_MAX_ROWS]))
        return tuple(row for _, row in _fitted(rows, kinds[0], wrong))
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return dict(_fitted(((name, part, f"{place}.{name}") for name, part in value.items()), kinds[1], wrong))
    if kind is str and isinstance(value, str):
        return bounded_text(value)
    of, least, most = kinds if get_origin(kind) is Annotated else (kind, 0 if kind is int else -MOST, MOST)
    if of in (int, float) and is_number(value) and least <= value <= most:
        return int(value) if of is int else value  # type: ignore[call-overload]
    fits = (
        (kind is bool and isinstance(value, bool))
        or (get_origin(kind) is Literal and type(value) in (int, str) and value in kinds)
        or (kind is object and _is_plain(value))
    )
    if fits:
        return value
    wrong.append(place)
    return _default(kind)


def _fitted(parts: Iterable[tuple[T, object, str]], kind: object, wrong: list[str]) -> Iterator[tuple[T, object]]:
    """The parts that are of this kind, each with its key."""
    for key, part, place in parts:
        before = len(wrong)
        fitted = _fit(part, kind, place, wrong)
        if len(wrong) == before:
            yield key, fitted


def _is_part(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ReportPart)


def _default(kind: object) -> object:
    """What stands where nothing was measured."""
    only, may_be_none = without_none(kind)
    origin = get_origin(only)
    if may_be_none or only is object:
        return None
    if origin is Literal:
        return get_args(only)[0]
    if isinstance(only, type) and _is_part(only):
        return from_dict(only, {})
    of = get_args(only)[0] if origin is Annotated else origin or only
    return {} if of is Mapping else of()  # type: ignore[operator]


def _is_plain(value: object, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH or (isinstance(value, dict | list) and len(value) > _MAX_ROWS):
        return False
    if isinstance(value, dict | list):
        return all(_is_plain(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | bool) or is_number(value)


def _sentence(wrong: list[str]) -> list[str]:
    if not wrong:
        return []
    more = f" and {len(wrong) - _MAX_NAMED:,} more" if len(wrong) > _MAX_NAMED else ""
    return [f"not as schema 1 has it, and left out: {', '.join(at or 'all of it' for at in wrong[:_MAX_NAMED])}{more}"]
