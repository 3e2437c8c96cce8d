"""The report's classes: the same as JSON Schema, there and back without loss, and nothing breaks what reads them."""

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.telemetry import report as parts
from forgather_mem.telemetry.report import (
    Change,
    DeviceMemory,
    LastError,
    LeakReport,
    OomReport,
    Peak,
    RunReport,
    Training,
)
from forgather_mem.telemetry.report_part import ReportPart, RunHeader
from forgather_mem.telemetry.report_schema import (
    checked,
    checked_report,
    from_dict,
    keys_of,
    read_report,
    to_dict,
    without_none,
)
from tests.json_schema import FILE, assert_fits, faults, schema
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory

PARTS = [part for part in vars(parts).values() if isinstance(part, type) and issubclass(part, ReportPart)]


def filled(kind: Any) -> Any:
    """A value of this type in which whatever may be missing is there."""
    only, _ = without_none(kind)
    origin, inner = get_origin(only), get_args(only)
    if origin is Literal:
        return inner[-1]
    if origin is Annotated:
        return inner[2]
    if origin is tuple:
        return tuple(filled(one) for one in (inner if inner[-1] is not ... else inner[:1] * 2))
    if origin is Mapping:
        return {"a": filled(inner[1])}
    if only is object:
        return {"deep": [1, {"er": None}]}
    if only in (str, int, float, bool):
        return {str: "text", int: 7, float: 0.5, bool: True}[only]
    return only(**{name: filled(key.kind) for name, key in keys_of(only).items()})


def test_the_committed_schema_is_what_the_classes_give() -> None:
    text = runpy.run_path(str(FILE.parent / "generate_report_schema.py"))["text"]
    assert FILE.read_text(encoding="utf-8") == text(), "run: python docs/generate_report_schema.py"


@pytest.mark.parametrize(("part", "above"), [(RunReport, ""), (Training, "run.")])
def test_each_key_has_a_row_in_the_docs(part: type[ReportPart], above: str) -> None:
    page = (FILE.parent / "report.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| key \| what it is \|\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith(f"| `{above}")]
    named = {name.removeprefix(above).partition(".")[0] for cell in cells for name in re.findall(r"`([\w.]+)", cell)}
    assert keys_of(part).keys() - named == set()


def texts_of(kind: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """The key that holds a part, and each of its keys that hold text."""
    if not isinstance(kind, type) or not issubclass(kind, ReportPart):
        for inner in get_args(kind):
            yield from texts_of(inner, above)
        return
    for name, key in keys_of(kind).items():
        if re.search("str|object", str(key.kind)):
            yield above, name
        yield from texts_of(key.kind, name)


def test_what_each_text_says_of_the_user_is_in_the_docs() -> None:
    page = (FILE.parent / "security_details.md").read_text(encoding="utf-8")
    table = page.partition("## What a report says of you\n")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| .* \| (.*) \|$", table, re.M) for name in re.findall(r"`([\w.]+)`", row)}
    places = {*texts_of(RunReport), *(("run", name) for name in keys_of(RunHeader))}
    times = Counter(name for _, name in places)
    keys = {name if times[name] == 1 else f"{part}.{name}" for part, name in places}
    assert named == keys, "a row there (`part.key` where several parts have it) and in docs/security.md: its files"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_part_with_everything_that_may_be_in_it_survives_json(part: type[ReportPart]) -> None:
    whole = filled(part)
    plain = to_dict(whole)
    assert set(plain) == set(keys_of(part)) == {one.name for one in fields(part)}
    assert json.loads(json.dumps(plain)) == plain
    wrong: list[str] = []
    assert from_dict(part, plain, wrong) == whole
    assert wrong == []


def test_a_report_with_everything_that_may_be_in_it_fits_the_schema() -> None:
    plain = to_dict(filled(RunReport))
    assert_fits(plain)
    assert set(plain) == set(schema()["properties"])


@pytest.mark.parametrize("make", [all_well, leaking, out_of_memory, killed])
def test_what_a_report_says_is_still_there_when_it_was_read(make: Any) -> None:
    report = make()
    read = checked_report(json.loads(json.dumps(report)))
    assert read.left_out == ()
    assert_fits(to_dict(read))
    assert_holds(to_dict(read), report)


def assert_holds(whole: Any, part: Any) -> None:
    """Each key of `part` is in `whole` with its value."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert_holds(whole[name], value)
    elif isinstance(part, list):
        for row, value in zip(whole, part, strict=True):
            assert_holds(row, value)
    else:
        assert whole == part


def test_an_empty_report_has_every_key_and_no_rare_one() -> None:
    plain = to_dict(RunReport())
    assert_fits(plain)
    assert set(plain) == {name for name, key in keys_of(RunReport).items() if not key.rare}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_whatever_a_key_holds_what_is_read_fits_the_schema(data: st.DataObject) -> None:
    plain = to_dict(filled(RunReport))
    for _ in range(data.draw(st.integers(1, 4))):
        part: Any = plain
        while isinstance(part, dict | list) and part:
            key = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
            if not isinstance(part[key], dict | list) or data.draw(st.booleans()):
                part[key] = data.draw(JSON)
                break
            part = part[key]
    read = to_dict(from_dict(RunReport, plain))
    assert_fits(read)
    assert from_dict(RunReport, read) == from_dict(RunReport, plain)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"steps": "many"}, "steps"),
        ({"steps": float("nan")}, "steps"),
        ({"leak": {"verdict": "perhaps"}}, "leak.verdict"),
        ({"device": [{"name": "GPU"}]}, "device[0].peak_allocated_bytes"),
        ({"run": {"argv": ["a", 3]}}, "run.argv[1]"),
        ({"missing_ranks": [False]}, "missing_ranks[0]"),
        ({"schema": True}, "schema"),
    ],
)
def test_a_wrong_part_is_named_and_replaced(change: dict[str, Any], place: str) -> None:
    wrong: list[str] = []
    report = from_dict(RunReport, {**to_dict(RunReport()), **change}, wrong)
    assert place in wrong
    assert (report.steps, report.leak.verdict, report.device) == (0, "not enough data", ())
    assert report.run.argv in ((), ("a",))


def test_keys_of_a_newer_version_are_passed_over() -> None:
    plain = to_dict(RunReport())
    newer = {**plain, "run": {**plain["run"], "planet": {"name": "Mars"}}, "tomorrow": [1, 2.5]}
    wrong: list[str] = []
    assert (from_dict(RunReport, newer, wrong), wrong) == (RunReport(), [])


def test_a_merged_report_has_all_that_belongs_to_ranks_or_nothing_of_it() -> None:
    plain = to_dict(filled(RunReport))
    read = checked_report({**plain, "spread": 3})
    assert (read.ranks, read.spread, read.missing_ranks) == (None, None, None)


def test_what_ended_a_process_is_used_whole_or_not_at_all() -> None:
    error = LastError(oom=OomReport(where="host", step=3, phase="forward", rank=0), advice=(Change(text="less"),))
    assert checked(LastError, to_dict(error)) == error
    assert checked(LastError, {**to_dict(error), "advice": [3]}) is None
    assert checked(LastError, None) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": 2, "run": {}}', b"[" * 10_000])
def test_a_file_that_holds_no_report_says_so(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    report, (sentence,) = read_report(path)
    assert report is None
    assert sentence.startswith("report.json: it holds no ")


# Rates and differences; where a process's code is below 0, a signal has ended it
MAY_BE_BELOW_ZERO = re.compile("per_step(_|$)|exit_code|started_with|startup$")


@pytest.mark.parametrize("part", [*PARTS, RunHeader], ids=lambda part: part.__name__)
def test_no_size_and_no_count_from_a_file_is_below_zero_or_huge(part: type[ReportPart]) -> None:
    plain = to_dict(filled(part))
    for name, key in keys_of(part).items():
        for number in ("-1", "1" + 19 * "0") if re.search("int|float", str(key.kind)) else ():
            wrong = json.loads(re.sub(r"[\d.]+", number, json.dumps(plain[name])))
            read = json.dumps(to_dict(from_dict(part, {**plain, name: wrong})))
            may_be = number == "-1" and MAY_BE_BELOW_ZERO.search(name)
            assert may_be or number not in read, f"{name}: an Amount, of telemetry/report_part.py, or in the list here"


def test_a_schema_that_is_not_kept_is_seen() -> None:
    """The check of the other tests finds what it should."""
    plain = to_dict(RunReport(device=(filled(DeviceMemory),), peaks=(filled(Peak),), leak=filled(LeakReport)))
    for path, value in (("steps", "3"), ("oom", 3), ("peaks", [{}]), ("run", to_dict(Training()) | {"rank": -1})):
        assert list(faults({**plain, path: value}, schema(), "report")), path
