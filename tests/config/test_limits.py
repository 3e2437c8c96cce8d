"""The limits that docs/security.md shows are those there are."""

import dataclasses
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem.config.clock import CpuClock, OutOfTime
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError


def test_the_table_of_the_document_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    table = re.search(r"^source_bytes .*?^render_cpu_s .*?$", text, re.M | re.S)
    assert table is not None
    shown = {name: float(limit) for name, limit in map(str.split, table[0].splitlines())}
    assert shown == dataclasses.asdict(Limits())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [" + "1, " * 2_000 + "]", 1),
        ("a: 1\n-- for i in range(2000)\nb{{ i }}: 1\n-- endfor", 1),
        ("a: 1\nb: '" + "{{ 1 }}" * 600 + "'", 1),
    ],
    ids=["events", "render", "tokens"],
)
def test_the_clock_stops_a_load_where_it_is_and_code_may_give_more_time(text, line):
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=1e-9)).load_from_string(text)
    assert refused.value.line == line
    ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=60)).load_from_string(text)


def test_the_clock_stops_the_built_ins_of_a_construction():
    config = ConfigEnvironment(policy=Policy()).load_from_string("a: !call:sorted [!call:range [100000]]")
    assert len(config.construct("a")) == 100_000
    config._budgets = Limits(render_cpu_s=1e-9)
    with pytest.raises(TemplateError, match="s of CPU time"):
        config.construct("a")


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


def test_the_clock_stops_a_construction_where_it_is():
    config = ConfigEnvironment(policy=Policy()).load_from_string("a: 1\nb: [" + "{}, " * 500 + "]")
    config._budgets = Limits(render_cpu_s=1e-9)
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        config.construct("b")
    assert refused.value.line == 2


def test_the_objects_that_calls_build_are_counted_and_code_may_allow_more():
    text = "a: &a !factory:datetime:timedelta {hours: 1}\nb: [" + "*a, " * 20 + "]\n"
    for number, budgets in (19, Limits(objects=19)), (20, Limits(objects=20)):
        config = ConfigEnvironment(policy=Policy(), budgets=budgets).load_from_string(text)
        if number == 20:
            assert len(config.construct("b")) == 20
            continue
        with pytest.raises(TemplateError, match="more than 19 objects are built by calls") as refused:
            config.construct("b")
        assert (refused.value.line, refused.value.path) == (1, "$.a")
    values = "[" + "!call:list [[1]], " * 50 + "]"
    assert len(ConfigEnvironment(budgets=Limits(objects=1)).load_from_string(values).construct()) == 50


def test_too_many_calls_are_refused_before_the_first_and_told_by_check():
    text = "b:\n" + "- !call:datetime:timedelta {hours: 1}\n" * 30
    config = ConfigEnvironment(policy=Policy(), budgets=Limits(objects=20)).load_from_string(text)
    with pytest.raises(TemplateError, match="more than 20 objects") as refused:
        config.construct("b")
    assert refused.value.line == 22
    (told,) = config.misfits()
    assert str(told) == str(refused.value)


def test_the_clock_runs_inside_only_and_large_templates_have_more_time():
    clock = CpuClock(0.0)
    clock.look()
    with clock, pytest.raises(OutOfTime):
        clock.look()
    clock = CpuClock(1e-3)
    clock.read(100 * 2**20)
    with clock, clock:
        sum(range(100_000))
        clock.look()
