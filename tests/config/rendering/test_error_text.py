"""Errors of a rendering: what, where, and what to do about it."""

import pickle

import pytest

from tests.config.rendering.folders import error


@pytest.mark.parametrize(
    ("template", "line", "column", "message", "hint"),
    [
        ("a: 1\nb: {{ learning_rat }}", 2, 7, "'learning_rat' is undefined", "did you mean 'learning_rate'?"),
        ("a: {{ cfg.lrr }}", 1, 11, "there is no 'lrr' in this mapping", "did you mean 'lr'?"),
        ("## c\n\n  {{ 1|toyam }}", 3, 8, "no filter named 'toyam'", "did you mean 'toyaml'?"),
        ("a: {{ 1 is nun }}", 1, 12, "no test named 'nun'", None),
        ("a\n{{ '' }", 2, 7, "unexpected '}'", None),
        ("[a]\n[b]\n[a]\n", 3, 2, "block 'a' defined twice", None),
        ("a: {{ [].append(1) }}", 1, 1, "unsafe", None),
        ("a: {{ 5() }}", 1, 1, "may not call", None),
        ("a: {{ joinpath }}", 1, 1, "can't be printed", None),
        ("a: {{ [nope] }}", 1, 8, "'nope' is undefined", None),
        ("a: {{ '\\ud800' }}", None, None, "surrogates", None),
        ("-- include 5", 1, 1, "name of a template is a string", None),
        ("{% autoescape true %}{% endautoescape %}", 1, 1, "no autoescape", None),
        ("\n\ufeffx: \uf4c1", 2, 5, "U+F4C1 is reserved", None),
        ("\n{% filter attr('__class__') %}x{% endfilter %}", 2, 1, "access to attribute '__class__' of 'str'", "data"),
        ("a: 1\n-- with b = 1 / 0\n-- endwith", 2, 1, "ZeroDivisionError", None),
        ("a: 1\nb: {{ 'x }}", 2, 1, 'unexpected character "\'"', "is this quote closed on its line?"),
        ("a: 1\nb: {{ x ? }}", 2, 1, "unexpected character '?'", None),
        ("[body]\n== self.boby()", 2, 1, "there is no block 'boby'", "did you mean 'body'?"),
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
