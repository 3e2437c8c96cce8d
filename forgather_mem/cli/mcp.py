"""`forgather-mem mcp`: an assistant reads the runs of a folder, by the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.cli.options import add_folder
from forgather_mem.cli.output import json_text
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import ForgatherMemError, escape_controls, shown

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from forgather_mem.telemetry.report import RunReport

_MOST_RUNS, _MOST_NAME = 100, 100
_ABOUT = (
    "Where the memory of PyTorch trainings went: peaks by phase, leaks with the line that keeps them, out-of-memory "
    "errors with what would have fitted. Names of runs are those that `runs` gives."
)


def add_arguments(parser: CommandParser) -> None:
    add_folder(parser, "Runs below it can be read.")


def mcp(folder: Path) -> None:
    """Answer an assistant's questions about runs, by the Model Context Protocol."""
    try:
        server = server_of(folder)
    except ModuleNotFoundError as error:
        raise ForgatherMemError(f"mcp: {error.msg or error}\n  pip install 'forgather_mem[mcp]'") from error
    server.run("stdio")


def server_of(top: Path) -> MCPServer:
    """A server with three tools, `runs`, `report` and `compare`, which read below this folder and write nothing.

    Raises:
        ModuleNotFoundError: without the package mcp, version 2 or newer.
    """
    from mcp.server.mcpserver import MCPServer

    tools = _Tools(top.expanduser().absolute())
    server = MCPServer("forgather-mem", instructions=_ABOUT)
    for tool in (tools.runs, tools.report, tools.compare):
        server.add_tool(tool)
    return server


class _Tools:
    def __init__(self, top: Path) -> None:
        self._top = top

    def runs(self) -> list[str]:
        """The names of the runs, the newest first."""
        with _tool_errors():
            return list(self._runs())[:_MOST_RUNS]

    def report(self, run: str = "", as_json: bool = False) -> str:
        """The report of a run, by default of the newest: as text, or with all numbers as JSON (schema 1)."""
        from forgather_mem.reporting.text import report_text
        from forgather_mem.telemetry.report_schema import to_dict

        with _tool_errors():
            found = self._read(run)
            return json_text(to_dict(found)) if as_json else report_text(found)

    def compare(self, before: str, after: str) -> str:
        """Which part of memory differs between two runs, in which phase, and which setting explains it."""
        from forgather_mem.comparing.comparison import comparison_of
        from forgather_mem.comparing.side import Side
        from forgather_mem.comparing.text import comparison_text

        with _tool_errors():
            sides = [Side(name=name, reports=[self._read(name)]) for name in (before, after)]
            return comparison_text(comparison_of(*sides))

    def _runs(self) -> dict[str, Path]:
        """The runs by their paths below the folder, the newest first."""
        from forgather_mem.reporting.run_dir import find_runs

        return {shown(escape_controls(str(place.relative_to(self._top)))): place for place in find_runs(self._top)}

    def _read(self, name: str) -> RunReport:
        """A run by its name, "" for the newest; no other folder is read."""
        from forgather_mem.reporting.run_dir import NoRun, run_report

        found = self._runs()
        if name and name not in found:
            raise NoRun(f"there is no run {name[:_MOST_NAME]!r}; `runs` names them")
        return run_report(found[name] if name else next(iter(found.values())))


@contextlib.contextmanager
def _tool_errors() -> Iterator[None]:
    """What is wrong, for the assistant."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except ForgatherMemError as error:
        raise ToolError(shown(str(error))) from error
