"""An assistant's own client asks the server about real runs; nothing outside the folder can be asked for."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests import hostile_folders as hostile
from tests.reporting.report_fixtures import all_well, leaking, written

pytest.importorskip("mcp", reason="the package mcp is not installed; `make trackers` has it")


def answers(folder: Path, *asked: tuple[str, dict[str, object]]) -> list[tuple[bool, str]]:
    """Whether each call failed, and its text."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def ask() -> list[tuple[bool, str]]:
        server = StdioServerParameters(command=sys.executable, args=["-m", "forgather_mem", "mcp", str(folder)])
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            assert {tool.name for tool in (await session.list_tools()).tools} == {"runs", "report", "compare"}
            found = [await session.call_tool(name, arguments) for name, arguments in asked]
            return [(one.is_error, "\n".join(part.text for part in one.content)) for one in found]

    return asyncio.run(ask())


def test_a_client_lists_reads_and_compares_runs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, report in (("runs/first", all_well()), ("runs/second", leaking()), ("secret", leaking())):
        (tmp_path / name).mkdir()
        written(report, tmp_path / name)
    listed, newest, as_json, between, outside, unknown = answers(
        tmp_path / "runs", ("runs", {}), ("report", {}), ("report", {"run": "first", "as_json": True}),
        ("compare", {"before": "first", "after": "second"}), ("report", {"run": "../secret"}),
        ("compare", {"before": "first", "after": "third"}),
    )  # fmt: skip
    assert not listed[0]
    assert "first" in listed[1]
    assert "second" in listed[1]
    assert "secret" not in listed[1]
    assert newest[1].startswith("== forgather-mem ==")
    assert json.loads(as_json[1])["schema"] == 1
    assert not between[0]
    assert "second" in between[1]
    assert outside[0]
    assert "there is no run '../secret'" in outside[1]
    assert unknown[0]
    assert "there is no run 'third'; `runs` names them" in unknown[1]


def test_no_text_of_a_stranger_is_obeyed_and_a_long_name_is_not_given_back(tmp_path: Path) -> None:
    name = hostile.OBEYED[:100].replace("/", "")
    for folder in ("honest", name):
        (tmp_path / folder).mkdir()
        report = json.loads(json.dumps(leaking()))
        (tmp_path / folder / "report.json").write_text(json.dumps(hostile.with_texts(report, ("end", "where"))))
    ((_, listed),) = answers(tmp_path, ("runs", {}))
    known = next(one for one in listed.splitlines() if one != "honest")
    given = answers(
        tmp_path, ("report", {"run": known}), ("report", {"run": known, "as_json": True}),
        ("compare", {"before": "honest", "after": known}), ("report", {"run": "x" * 100_000}),
        ("report", {"run": name}),
    )  # fmt: skip
    assert [failed for failed, _ in given] == [False, False, False, True, True], [text[:300] for _, text in given]
    for text in (listed, *(text for _, text in given)):
        hostile.assert_obeyed_by_nobody(text)
    assert max(len(text) for _, text in given[3:]) < 600
