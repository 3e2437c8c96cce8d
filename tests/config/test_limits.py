"""The limits that docs/security_details.md shows are those there are, and the clock of a load."""

import dataclasses
import functools
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError


def test_the_table_of_the_document_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "security_details.md").read_text(encoding="utf-8")
    table = re.search(r"^source_bytes .*?^render_cpu_s .*?$", text, re.M | re.S)
    shown = {name: float(limit) for name, limit in map(str.split, table[0].splitlines())}
    assert shown == dataclasses.asdict(Limits())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: [" + "1, " * 2_000 + "]", {1}),
        # The process's timer may have its first tick before the first line, or after the last: then reading the YAML is
        # stopped
        ("a: 1\n-- for i in range(2000)\nb{{ i }}: 1\n-- endfor", {None, 1, 2, 3}),
    ],
    ids=["events", "render"],
)
def test_the_clock_stops_a_load_where_it_is_and_code_may_give_more_time(text, lines):
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=1e-9)).load_from_string(text)
    assert refused.value.line in lines
    ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=60)).load_from_string(text)


@pytest.mark.parametrize(
    ("text", "size", "line"),
    [("\na: !call:sorted [!call:range [100000]]", 100_000, 2), ("\n\na: [" + "{}, " * 500 + "]", 500, 3)],
    ids=["built-ins", "nodes"],
)
def test_the_clock_stops_a_construction_where_it_is(text, size, line):
    config = ConfigEnvironment(policy=Policy()).load_from_string(text)
    assert len(config.construct("a")) == size
    config._make_resolver = functools.partial(config._make_resolver, budgets=Limits(render_cpu_s=1e-9))
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        config.construct("a")
    assert refused.value.line == line


def slowly(seconds):
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass
    return seconds


def test_the_clock_of_a_construction_counts_our_own_work_and_not_what_is_called(monkeypatch):
    monkeypatch.setitem(sys.modules, "slow_parts", SimpleNamespace(slowly=slowly))
    slowly.__module__ = "slow_parts"
    text = "a: &a !factory:slow_parts:slowly [0.002]\nb: [" + "*a, " * 300 + "]"
    budgets = Limits(render_cpu_s=0.2)
    made = (
        ConfigEnvironment(policy=Policy(["slow_parts:slowly"]), budgets=budgets).load_from_string(text).construct("b")
    )
    assert sum(made) == pytest.approx(0.6)


UP_BEFORE_ITS_FIRST_LINE = """
import datetime
from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.child import limited
from forgather_mem.config.rendering.stranger import Request

class Slow(tuple):
    def __iter__(self):
        while True:
            pass

print(limited(Request(
    name="<string>", text="a: 1", folders=Slow(["."]), budgets=Limits(render_cpu_s=0.01),
    global_vars={}, variables={}, secret="s", moment=datetime.datetime.now(),
)))
"""


def test_the_clock_of_a_strangers_process_may_be_up_before_its_first_line():
    done = subprocess.run([sys.executable, "-c", UP_BEFORE_ITS_FIRST_LINE], capture_output=True, text=True)
    said = {"error": {"message": "this template takes more than 0.01 s of CPU time", "template": "<string>"}}
    assert done.stdout == f"{said}\n", done.stderr
