"""What a template may use is counted, and what takes too much ends in an error."""

import time

import pytest

from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError
from tests.config.rendering.folders import error

SMALL = Limits(work=50_000, calls=5_000, loop_items=20_000, made_bytes=4_000_000)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}", "{{ [0] * 10**9 }}", "{{ 9**9999999 }}", "{{ 'a'|center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '{:1000000000}'.format(1) }}", "{{ '%*d' % (10**9, 1) }}",
        "{{ range(10**9)|list }}",
        "{{ ('a'*100000)|replace('a', 'b'*100000) }}", "{{ ('a'*100000).join(['b']*100000) }}",
        "{{ 1.5|round(10**9,'ceil') }}",
        "{% for i in range(200000) %}{% for j in range(200000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x, 'a'*999999 ~ i] %}{% endfor %}",
        "{% macro m(n) %}{{ m(n - 1) if n }}{{ m(n - 1) if n }}{% endmacro %}{{ m(60) }}",
        "{% set s = 'a'*999999 %}{% set t %}{% for i in range(9999) %}{{ s }}{% endfor %}{% endset %}",
        "{% set s = 'a'*999999 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
        "{{ 1 }}" * 60_000,
    ],
)  # fmt: skip
def test_a_template_that_takes_too_much_ends_soon_in_an_error(template):
    started = time.thread_time()
    error(template, SMALL)
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    "use", ["a == b", "a in [b]", "[a, b]|sort", "a ~ b", "a|string", "a|toyaml", "'%s' % a", "{a: 1}", "a"]
)
def test_a_small_value_that_would_print_without_end_is_refused(use):
    build = "{% set a = (1, 1) %}{% set b = (1, 1) %}" + "{% set a = (a, a) %}{% set b = (b, b) %}" * 50
    assert "evaluations" in error(f"{build}{{{{ {use} }}}}", SMALL).message


def test_a_small_template_that_is_used_often_is_counted_each_time(folder):
    folder.write(part="a", loop="{% for i in range(1000) %}{% include 'part.yaml' %}{% endfor %}")
    limits = {"includes": 10_000, "work": 100_000}
    assert len(Renderer(Searcher(folder.path), Limits(**limits)).render("loop.yaml").text) == 1_000
    with pytest.raises(TemplateError, match="evaluations"):
        Renderer(Searcher(folder.path), Limits(**{**limits, "work": 50_000})).render("loop.yaml")


def test_code_may_raise_a_budget():
    template = "{{ 'a' * 2000000 }}"
    error(template)
    budgets = Limits(string_bytes=3_000_000)
    assert len(Renderer(Searcher(()), budgets).render_string(template).text) == 2_000_000
