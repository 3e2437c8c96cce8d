"""Everything that a template may call has a rule that counts it beforehand."""

import inspect

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.rendering import costs
from forgather_mem.errors import TemplateError


def test_the_table_has_every_filter_test_and_function_that_the_sandbox_has(sandbox):
    assert {name for name in sandbox.filters if name[0] != " "} == set(costs.FILTERS)
    assert set(sandbox.tests) == set(costs.TESTS)
    makers = {value for value in sandbox.globals.values() if isinstance(value, type)}
    assert makers <= set(costs.CALLED_BY_JINJA)
    assert {name for name, value in sandbox.globals.items() if value not in makers} == set(costs.FUNCTIONS)


def test_what_a_rule_names_exists():
    for cls, rules in costs.METHODS.items():
        for name in rules:
            groups = cls is tuple and name in ("grouper", "list")  # of the tuples that groupby makes
            ours_to_read = cls.__module__.startswith("jinja2")  # attributes that instances have
            newer = name == "is_integer"  # of int, since Python 3.12
            assert groups or newer or hasattr(cls, name) or (ours_to_read and name in inspect.getsource(cls)), (
                cls,
                name,
            )


@pytest.mark.parametrize(
    "expression",
    [
        "([y] * 200000).count(range(20000)|list)", "(([y] * 200000,)).index(([y] * 200000) + [1])",
        "([y] * 200000) == ([y] * 200000)", "[1] in ([y] * 200000)", "([y] * 200000)|sort",
        "([y] * 200000)|unique|list",
        "([y] * 200000)|max", "([{'a': y}] * 200000)|groupby('a')", "([y] * 2000)|map('string')|list",
        "([y] * 200000)|tojson", "([y] * 200000)|toyaml", "([y] * 200000)|pprint", "([y] * 200000)|string",
        "([y] * 200000)|join", "([y] * 200000) ~ 'a'", "repr([y] * 200000)", "'%s' % ([y] * 200000,)",
        "'{0}'.format([y] * 200000)", "'{0!r}'.format([y] * 200000)", "([y] * 200000)|selectattr('a', 'eq', y)|list",
        "['a' * 1000000] * 250", "['\\0' * 1000000] * 250", "(['A' * 1000000] * 250)|sort",
        "('\\t' * 100000).expandtabs(tabsize=9999)", "('%9999d' * 1000) % ((1,) * 1000)", "'%*d' % (10**9, 1)",
        "(['\U0001f600' * 1000000] * 200)|tojson", "(range(190000)|list)|tojson(indent=100)"
        "namespace(range(0, 190000 * m, m)|batch(2))", "dict(range(0, 190000 * m, m)|batch(2))",
        "range(0, 190000 * m, m)|unique|list|length", "('a' * 1000000).rfind('b' ~ 'a' * 500000)",
    ],
)  # fmt: skip
def test_what_would_take_long_is_refused_before_it_is_called(expression):
    head = "-- set y = range(20000)|list\n-- set m = 2305843009213693951\n"
    with pytest.raises(TemplateError) as refused:
        ConfigEnvironment(policy=Policy()).load_from_string(f"{head}a: {{{{ {expression} }}}}")
    assert refused.value.line == 3


@pytest.mark.parametrize(
    "expression",
    ["s.split(',')|length", "s.replace(',', x)|length", "s|list|length", "s|reverse|list|length"],
)
def test_what_takes_strings_from_outside_apart_is_counted_with_its_pieces(expression):
    text = f"-- set s = (x ~ ',') * 9000\na: {{{{ {expression} }}}}"
    with pytest.raises(TemplateError) as refused:
        ConfigEnvironment(policy=Policy()).load_from_string(text, x="a")
    assert refused.value.line == 2
    assert ConfigEnvironment(policy=Policy()).load_from_string(text.replace("9000", "90"), x="a").text[0] == "a"
