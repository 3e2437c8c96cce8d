"""The size of what a construction builds, shared parts counted in each place."""

import time

import pytest

from forgather_mem.config.construction.construct import Construction
from forgather_mem.config.construction.resolve import Resolver
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import TemplateError


def test_factories_that_multiply_are_stopped():
    lines = ["l0: &l0 !factory:dict {}"] + [f"l{i}: &l{i} !factory:list [[*l{i - 1}, *l{i - 1}]]" for i in range(1, 18)]
    text = "\n".join(lines)
    graph = parse(Rendered.as_is(text))
    with pytest.raises(TemplateError, match="more than 10,000 objects are built"):
        Construction(Resolver(graph, Policy(), {}, budgets=Limits(expanded_nodes=10_000))).build([graph.target("l17")])


@pytest.mark.parametrize(
    "call",
    [
        "collections:OrderedDict [[[*u, 1]]]", "forgather_mem:Every { steps: *u }", "list [*u]", "getitem [{}, *u]",
        "pathlib:Path [*u]", "datetime:timedelta [*u]",
    ],
)  # fmt: skip
def test_aliases_do_not_multiply_what_a_range_gives(call):
    text = f".t: &t !call:tuple [!call:range [400000]]\n.u: &u !tuple [{'*t, ' * 20_000}1]\na: !call:{call}\n"
    config = ConfigEnvironment(policy=Policy()).load_from_string(text)
    begin = time.process_time()
    with pytest.raises(TemplateError, match="more than 1,000,000 items"):
        config.construct()
    assert time.process_time() - begin < 5


def test_the_items_of_a_range_count_in_targets_that_are_asked_for_one_after_the_other():
    text = f"t: &t !call:tuple [!call:range [400000]]\nu: !tuple [{'*t, ' * 5}1]\nf: !factory:list [[1]]\n"
    config = ConfigEnvironment(policy=Policy()).load_from_string(text)
    assert len(config["t"]) == 400_000
    with pytest.raises(TemplateError, match="more than 1,000,000 items"):
        config["u"]
    assert config["f"] == [1]


def test_variables_do_not_multiply_a_long_text():
    text = f"u: &u [{'!var pp_config, ' * 50_000}1]\na: !call:forgather_mem:Every {{ steps: *u }}\n"
    config = ConfigEnvironment(policy=Policy()).load_from_string(text)
    with pytest.raises(TemplateError, match="more than 1,000,000 items"):
        config.construct()


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
