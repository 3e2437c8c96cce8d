"""The CPU clock of a load or a construction."""

import functools
import sys
import time
from types import SimpleNamespace

import pytest

from forgather_mem.config.clock import CpuClock, OutOfTime
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb: [" + "1, " * 2_000 + "]", {1}),
        # The loop may be through before the process's timer has its first tick, and then reading the YAML is stopped
        ("a: 1\n-- for i in range(2000)\nb{{ i }}: 1\n-- endfor", {3, 1}),
    ],
    ids=["events", "render"],
)
def test_the_clock_stops_a_load_where_it_is_and_code_may_give_more_time(text, lines):
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=1e-9)).load_from_string(text)
    assert refused.value.line in lines
    ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=60)).load_from_string(text)


def test_the_clock_stops_the_built_ins_of_a_construction():
    config = ConfigEnvironment(policy=Policy()).load_from_string("a: !call:sorted [!call:range [100000]]")
    assert len(config.construct("a")) == 100_000
    config._make_resolver = functools.partial(config._make_resolver, budgets=Limits(render_cpu_s=1e-9))
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
    config._make_resolver = functools.partial(config._make_resolver, budgets=Limits(render_cpu_s=1e-9))
    with pytest.raises(TemplateError, match="s of CPU time") as refused:
        config.construct("b")
    assert refused.value.line == 2


def test_the_clock_runs_inside_only_and_large_templates_have_more_time():
    clock = CpuClock(0.0)
    clock.look()
    with clock, pytest.raises(OutOfTime):
        clock.look()
    clock = CpuClock(1e-3, 100 * 2**20)
    with clock, clock:
        sum(range(100_000))
        clock.look()
