"""Rendering: what text comes out, which places errors name, what stops a template that takes too much."""

import concurrent.futures
import contextlib
import datetime
import logging
import pickle
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError


class Folder:
    """A folder of templates and the renderer of it."""

    def __init__(self, path):
        self.path = path
        self.renderer = Renderer(Searcher(path))

    def write(self, **files):
        for name, text in files.items():
            file = self.path / f"{name.replace('__', '/')}.yaml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)

    def text(self, _name="main.yaml", _files=None, **variables):
        return self.renderer.render(_name, variables).shown

    def error(self, _name="main.yaml", **variables):
        with pytest.raises(TemplateError) as caught:
            self.renderer.render(_name, variables)
        assert len(str(caught.value)) <= 2_000
        return caught.value


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def text(template, **variables):
    return Renderer(Searcher(())).render_string(template, variables).shown


def error(template, budgets=None, **variables):
    with pytest.raises(TemplateError) as caught:
        Renderer(Searcher(()), budgets).render_string(template, variables)
    return caught.value


# What templates print


def test_a_child_extends_a_block_by_what_the_parent_has_in_it(folder):
    folder.write(
        base="cbs: !dlist\n    [callback_list]\n    a: 1\n[end]\nlast: true\n",
        main="-- extends 'base.yaml'\n[callback_list]\n    == super()\n    b: 2\n",
    )
    assert folder.text() == "cbs: !dlist\n    a: 1\n\n    b: 2\n\nlast: true\n"


def test_statements_loops_macros_and_namespaces_work(folder):
    folder.write(
        tools="-- macro pair(key, value='none')\n== key ~ ': ' ~ value\n-- endmacro\n",
        main="""\
-- from 'tools.yaml' import pair
-- set ns = namespace(total=0)
-- for n in [1, 2, 3] if n != 2
    -- set ns.total = ns.total + n
n{{ loop.index }}of{{ loop.length }}: {{ n }}
-- endfor
total: {{ ns.total }}
{{ pair('x', value=5) }}{{ pair('y') -}}
-- import 'tools.yaml' as t
=> t.pair('z')
""",
    )
    assert folder.text() == "n1of2: 1\nn2of2: 3\ntotal: 4\nx: 5\ny: none\nz: none"


def test_blocks_filters_and_calls_capture_text():
    assert text("-- filter upper\na: b\n-- endfilter\n") == "A: B\n"
    assert text("{% set x %}a{{ 1 }}{% endset %}{{ x|length }}{{ x }}") == "2a1"
    assert text("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}") == "<in>"


def test_a_trimmed_block_in_a_child_is_printed_once(folder):
    folder.write(base="a: 1\n[body]\nold: 1\n[end]\nz: 1\n", main="-- extends 'base.yaml'\n[body!]\n\n  new: 1\n\n")
    assert folder.text() == "a: 1\nnew: 1\nz: 1\n"


def test_a_trimmed_block_of_a_parent_trims_what_a_child_puts_there(folder):
    folder.write(base="[body!]\n\nold: 1\n\n", main="-- extends 'base.yaml'\n[body]\n\n  new: 1\n\n")
    assert folder.text("base.yaml") == "old: 1"
    assert folder.text() == "new: 1"


def test_an_include_does_not_swallow_the_line_behind_it(folder):
    folder.write(part="b: 2\n", empty="-- set x = 1\n", main="-- include 'part.yaml'\nc: 3\n")
    assert folder.text() == "b: 2\nc: 3"
    folder.write(main="-- include 'part.yaml'\n\nc: 3\n")
    assert folder.text() == "b: 2\nc: 3"
    folder.write(main="-- include 'part.yaml'\n-- include 'empty.yaml'\n-- include 'part.yaml'\nc: 3\n")
    assert folder.text() == "b: 2\nb: 2\nc: 3"
    folder.write(main="a: {% include 'part.yaml' %}\n!\n")
    assert folder.text() == "a: b: 2!"


def test_an_include_in_a_loop_or_a_branch_does_not_swallow_the_line_behind_it(folder):
    folder.write(part="- {{ i }}\n", main="-- for i in [1, 2]\n-- include 'part.yaml'\n-- endfor\n- 3\n")
    assert folder.text() == "- 1\n- 2\n- 3"
    for start in ("if i", "if not i\n-- elif i", "if not i\n-- else"):
        folder.write(main=f"-- {start}\n-- include 'part.yaml'\n-- endif\n-- set x = 1\n- 3\n")
        assert folder.text(i=1) == "- 1\n- 3"
    folder.write(main="-- if i\n-- include 'part.yaml'\n-- endif\n\n- 3\n")
    assert folder.text(i=1) == "- 1\n- 3"
    folder.write(main="-- for i in [1, 2]\na:\n-- if i\n-- include 'part.yaml'\n-- endif\n-- endfor\n")
    assert folder.text() == "a:\n- 1\na:\n- 2\n"


def test_the_first_template_of_a_list_that_exists_is_included(folder):
    folder.write(part="b: 2", main="-- include ['none.yaml', name]\n")
    assert folder.text(name="part.yaml") == "b: 2"
    folder.write(main="a: 1\n-- include 'none.yaml' ignore missing\nb: 2\n")
    assert folder.text() == "a: 1\nb: 2"


def test_a_sub_template_is_seen_by_what_its_file_uses_and_by_files_that_extend_it(folder):
    folder.write(
        base="-- include 'project.part'\n\n-- include 'base.part'\n#--- base.part ---\nbase: 1\n",
        main="-- extends 'base.yaml'\n#--- project.part ---\nmain: 1\n-- include 'base.part'\n",
    )
    assert folder.text() == "main: 1\nbase: 1\nbase: 1"


def test_a_sub_template_goes_before_a_file_and_does_not_leak_into_other_loads(folder):
    folder.write(
        part="file: 1", main="-- include 'part.yaml'\n#--- part.yaml ---\nsub: 1\n", other="-- include 'part.yaml'"
    )
    assert folder.text() == "sub: 1"
    assert folder.text("other.yaml") == "file: 1"


def test_a_sub_template_does_not_leak_into_files_beside(folder):
    folder.write(
        one="#\n#--- mine ---\nx: 1\n", two="-- include 'mine'\n", main="-- include 'one.yaml'\n-- include 'two.yaml'\n"
    )
    assert folder.error().template == "two.yaml"


def test_times_of_one_render_are_one_moment_and_paths_are_the_platform_s(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/cfg")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USER", "me")
    assert text("{{ now() == now() }} {{ (now() - utcnow()).total_seconds()|abs < 86400 }}") == "True True"
    datetime.datetime.fromisoformat(text("{{ isotime() }}"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", text("{{ utcfiletime() }}"))
    assert text("{{ user_config_dir('app', version='1') }} {{ forgather_config_dir() }} {{ user_home_dir() }}") == (
        "/cfg/app/1 /cfg/forgather /home/me"
    )
    assert text("{{ joinpath('a', 'b/../c.py')|replace('b/../', '') }}") == "a/c.py"
    assert text("{{ modname_from_path('/a/mod.py') }} {{ splitext('a.b') }} {{ repr('x') }}") == "mod ('a', '.b') 'x'"


@pytest.mark.parametrize(
    ("value", "yaml"),
    [("'a b'", "a b"), ("'1'", "'1'"), ("none", "null"), ("true", "True"), ("1e-4", "0.0001"), ("1e22", "1.0e+22"),
     ("['a', '1', none, true]", "[a, '1', null, true]"), ("{'b': 1, 'a': [2]}", "{a: [2], b: 1}"),
     ("'a: b'", "'a: b'"), ("''", "''"), ("'yes'", "'yes'"), ("[[1, 2], {}]", "[[1, 2], {}]")],
)  # fmt: skip
def test_toyaml_writes_what_pyyaml_would(value, yaml):
    assert text(f"{{{{ {value}|toyaml }}}}") == yaml


def test_toyaml_takes_its_default_for_what_is_undefined():
    assert text("{{ x|toyaml(None) }} {{ x|toyaml([1]) }}") == "null [1]"
    assert "'x' is undefined" in str(error("{{ x|toyaml }}"))


def test_an_undefined_block_of_a_child_is_an_error_when_misspelt_and_else_told_once(folder, caplog):
    folder.write(base="[callback_list]\na: 1\n", main="-- extends 'base.yaml'\n[callback_lst]\nb: 1\n")
    assert "did you mean 'callback_list'?" in str(folder.error())
    folder.write(main="-- extends 'base.yaml'\n[other]\nb: 1\n")
    with caplog.at_level(logging.WARNING):
        rendered = [folder.renderer.render("main.yaml") for _ in range(2)]
    assert [str(block.line) for block in rendered[1].unknown_blocks] == ["2"]
    assert len(caplog.records) == 1
    folder.write(main="-- extends 'base.yaml'\n[callback_list]\n== self.part()\n{% block part %}b: 1{% endblock %}\n")
    assert folder.renderer.render("main.yaml").unknown_blocks == ()


def test_a_changed_file_is_rendered_anew(folder):
    folder.write(main="-- include 'part.yaml'", part="a: 1")
    assert folder.text() == "a: 1"
    folder.write(part="a: changed")
    assert folder.text() == "a: changed"


def test_texts_that_are_rendered_in_turn_are_compiled_once_and_not_kept_for_ever():
    renderer = Renderer(Searcher(()))
    for number in range(200):
        assert renderer.render_string(f"a: {{{{ {number} }}}}").text == f"a: {number}"
        assert renderer.render_string("b: {{ x }}", {"x": number}).text == f"b: {number}"
    assert len(renderer._compiler._compiled) < 100


def test_renders_in_several_threads_do_not_mix():
    renderer = Renderer(Searcher(()))
    template = "-- for i in range(50)\nx{{ i }}: {{ x }}\n-- endfor\n"

    def shown(value):
        return renderer.render_string(template, {"x": value}).shown

    values = [f"value {number}" for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for value, result in zip(values, pool.map(shown, values), strict=True):
            assert result.count(value + "\n") == 50


def test_a_module_that_is_imported_is_run_for_each_render(folder):
    folder.write(m="-- set t = now().isoformat()\n", main="-- import 'm.yaml' as m\nt: {{ m.t }}")
    first = folder.text()
    time.sleep(0.002)
    assert folder.text() != first


def test_templates_that_are_used_are_listed_with_levels(folder):
    folder.write(
        base="-- include part ~ '.yaml'\n",
        part="a: 1",
        main="-- extends 'base.yaml'\n-- set part = 'part'\n#--- sub ---\n-- include 'b.yaml'\n",
    )
    assert [reference[:2] for reference in folder.renderer.referenced("main.yaml")] == [
        (0, "main.yaml"), (1, "base.yaml"), (2, "part.yaml"),
    ]  # fmt: skip
    assert folder.renderer.referenced("main.yaml")[1].file == str(folder.path / "base.yaml")


def test_templates_are_listed_by_their_text_when_rendering_fails(folder):
    folder.write(base="{{ nope }}\n-- include 'part.yaml'\n", part="#", main="-- extends 'base.yaml'\n")
    assert [tuple(reference[:2]) for reference in folder.renderer.referenced("main.yaml")] == [
        (0, "main.yaml"), (1, "base.yaml"), (2, "part.yaml"),
    ]  # fmt: skip


# Errors


@pytest.mark.parametrize(
    ("template", "line", "column", "message", "hint"),
    [
        ("a: 1\nb: {{ learning_rat }}", 2, 7, "'learning_rat' is undefined", "did you mean 'learning_rate'?"),
        ("a: {{ cfg.lrr }}", 1, 11, "there is no 'lrr' in this mapping", "did you mean 'lr'?"),
        ("a: {{ 1 / (1 - 1) }}", 1, 1, "ZeroDivisionError", None),
        ("## c\n\n  {{ 1|toyam }}", 3, 8, "no filter named 'toyam'", "did you mean 'toyaml'?"),
        ("a: {{ 1 is nun }}", 1, 12, "no test named 'nun'", None),
        ("-- if x\na: 1\n", 2, 1, "unexpected end of template", None),
        ("-- endif", 1, 4, "unknown tag 'endif'", None),
        ("a\n{{ '' }", 2, 7, "unexpected '}'", None),
        ("[a]\n[b]\n[a]\n", 3, 2, "block 'a' defined twice", None),
        ("a: {{ ''.__class__ }}", 1, 1, "unsafe", None),
        ("a: {{ [].append(1) }}", 1, 1, "unsafe", None),
        ("a: {{ 5() }}", 1, 1, "may not call", None),
        ("a: {{ joinpath }}", 1, 1, "can't be printed", None),
        ("a: {{ [nope] }}", 1, 8, "'nope' is undefined", None),
        ("a: {{ '\\ud800' }}", None, None, "surrogates", None),
        ("-- include 'nope.yaml'", 1, 1, "template 'nope.yaml' not found", "looked in"),
        ("-- include '../x'", 1, 1, "has '..' in it", None),
        ("-- include 5", 1, 1, "name of a template is a string", None),
        ("{% autoescape true %}{% endautoescape %}", 1, 1, "no autoescape", None),
        ("\n\ufeffx: \uf4c1", 2, 5, "U+F4C1 is reserved", None),
    ],
)  # fmt: skip
def test_an_error_says_what_where_and_what_to_do(template, line, column, message, hint):
    raised = error(template, learning_rate=1, cfg={"lr": 1})
    assert message in raised.message
    assert (raised.template, raised.line) == ("<string>", line)
    if column != 1:
        assert raised.column == column
    assert (
        raised.hint is None if hint is None and "did you" in str(raised.hint) else hint is None or hint in raised.hint
    )
    assert pickle.loads(pickle.dumps(raised)).message == raised.message


def test_the_cause_of_an_error_is_kept():
    assert isinstance(error("{{ 1 / 0 }}").__cause__, ZeroDivisionError)


def test_an_error_names_the_file_that_has_it_and_the_way_there(folder):
    folder.write(
        base="a: 1\n[list]\nx: {{ 1 / 0 }}\n",
        middle="-- extends 'base.yaml'\n",
        main="# first\n\n-- extends 'middle.yaml'\n",
    )
    assert str(folder.error()) == (
        "base.yaml:3:1: ZeroDivisionError: division by zero\n   3 | x: {{ 1 / 0 }}\n     | ^\n"
        "  in block list, extended by middle.yaml:1, extended by main.yaml:3"
    )


def test_an_error_in_a_sub_template_names_the_line_of_its_file(folder):
    folder.write(main="-- include 'sub'\n\n#--- sub ---\n## c\nx: {{ nope }}\n")
    raised = folder.error()
    assert (raised.template, raised.line, raised.column) == ("main.yaml", 5, 7)
    assert raised.chain == "included by main.yaml:1"


def test_an_error_in_a_macro_names_the_macro_s_file(folder):
    folder.write(tools="-- macro f(x)\n\n{{ x.y.z }}\n-- endmacro", main="-- from 'tools.yaml' import f\na: {{ f(1) }}")
    raised = folder.error()
    assert (raised.template, raised.line) == ("tools.yaml", 3)


def test_a_super_block_that_is_not_there_is_named(folder):
    folder.write(main="[a]\n== super()\n")
    raised = folder.error()
    assert (raised.message, raised.line) == ("there is no parent block called 'a'", 2)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("a: 1\n{% filter attr('__class__') %}x{% endfilter %}", 2, "access to attribute '__class__' of 'str'", "data"),
        ("a: 1\n-- with b = 1 / 0\n-- endwith", 2, "ZeroDivisionError", None),
        ("a: 1\nb: {{ 'x }}", 2, 'unexpected character "\'"', "is this quote closed on its line?"),
        ("a: 1\nb: {{ x ? }}", 2, "unexpected character '?'", None),
        ("[body]\n== self.boby()", 2, "there is no block 'boby'", "did you mean 'body'?"),
    ],
)
def test_a_mistake_in_jinja_has_its_line_and_words_for_people(folder, text, line, message, hint):
    folder.write(main=text)
    raised = folder.error()
    assert raised.line == line
    assert message in raised.message
    assert raised.hint is None if hint is None else hint in raised.hint


def test_what_a_filter_makes_of_a_block_is_printed(folder):
    folder.write(main="-- with b = 1\nb: {{ b }}\n-- endwith\na: {% filter length %}xyz{% endfilter %}\n")
    assert folder.text() == "b: 1\na: 3"


def test_a_misspelt_template_name_is_answered_with_the_near_one(folder):
    folder.write(callbacks__memory="", main="-- extends 'callbacks/memroy.yaml'\n")
    assert "did you mean 'callbacks/memory.yaml'?" in folder.error().hint


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"main": "-- extends 'main.yaml'\n"}, "extends itself: main.yaml -> main.yaml"),
        ({"main": "-- extends 'a.yaml'\n", "a": "-- extends 'main.yaml'\n"}, "extends itself"),
        ({"main": "-- include 'main.yaml'\n"}, "loads more than 300 templates|nest too deeply"),
        ({"main": "-- include 's'\n#--- s ---\n-- include 's'\n"}, "loads more than 300 templates|nest too deeply"),
        ({"main": "-- macro f()\n== f()\n-- endmacro\n== f()\n"}, "nest too deeply"),
        ({"main": "[a]\n== self.a()\n"}, "nest too deeply"),
        ({"main": "{{ " + "(" * 400 + "1" + ")" * 400 + " }}"}, "nest too deeply"),
        ({"main": "{% for i in [1] %}" * 60 + "{% endfor %}" * 60}, "can't compile|nest too deeply"),
        ({"main": "#\n#--- a ---\n\n#--- a ---\nx\n"}, "another sub-template 'a'"),
    ],
)  # fmt: skip
def test_endless_templates_end_in_an_error(folder, files, message):
    folder.write(**files)
    assert re.search(message, folder.error().message)


def test_a_long_chain_of_extends_works_and_a_longer_one_is_an_error(folder):
    folder.write(**{f"t{n}": f"-- extends 't{n + 1}.yaml'\n" for n in range(1_100)})
    folder.write(t100="a: 1")
    assert folder.text("t0.yaml") == "a: 1"
    folder.write(t100="-- extends 't101.yaml'\n")
    assert re.search("more than 1,000 templates|nest too deeply|CPU time", folder.error("t0.yaml").message)


# Budgets

RENDERER = Renderer(Searcher(()))
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


def test_code_may_raise_a_budget():
    template = "{{ 'a' * 2000000 }}"
    error(template)
    budgets = Limits(string_bytes=3_000_000)
    assert len(Renderer(Searcher(()), budgets).render_string(template).text) == 2_000_000


def test_nothing_of_a_template_is_computed_while_it_is_compiled():
    assert text("{% if false %}{{ 9**9**9**9 }}{{ 'a' * 10**12 }}{{ 'a'|center(10**12) }}{% endif %}ok") == "ok"


# Any text


JINJA = st.lists(
    st.sampled_from(
        [
            "{{ ", " }}", "{% ", " %}", "{# ", " #}", "\n", "-- if x\n", "-- endif\n", "-- for i in [1, 2]\n",
            "-- endfor\n",
            "[a]\n", "[b!]\n", "== x\n", "-- set y = ", "x", "y", "|upper", "|toyaml", "(", ")", "[", "]", "'", '"',
            "1", "+",
            "**", "~", ".real", "['a']", "-- block c\n", "-- endblock\n", "super()", "-- include 'z'\n",
            "-- extends x\n", "##",
            "-- macro m()\n", "-- endmacro\n", "m()", "%", "range(9)", "\U0001f600", "\x85", "\x00", ":", "- ", "\t",
            "*", "=>",
        ]
    ),
    max_size=25,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(JINJA.map("".join) | st.text(max_size=30))
def test_any_text_is_rendered_or_answered_with_our_error(template):
    with contextlib.suppress(TemplateError):
        rendered = RENDERER.render_string(template, {"x": "value"})
        assert rendered.place(1).template == "<string>"
