"""Names, variables and arguments of a graph: found, bound and compared before anything is built."""

import pytest

from forgather_mem.config.policy.policy import Policy
from tests.config.construction.parts import build, refused


def test_a_default_that_is_not_used_is_neither_refused_nor_built(parts):
    assert build("a: !var {name: x, default: !singleton:nowhere:at_all []}", x=3) == {"a": 3}


def test_an_unbound_variable_is_an_error_before_anything_is_built(parts):
    error = refused("a: !singleton:parts_of_test:Part\nb: !var summary_writr\nc: !var other", summary_writer=1)
    assert "the variable 'summary_writr' has no value and no default" in error.message
    assert error.hint.startswith("did you mean 'summary_writer'?")
    assert (error.line, error.path) == (2, "$.b")
    assert parts.made == []


def test_a_call_that_fails_with_a_text_like_a_key_asks_for_the_colon(parts):
    assert build("x: !singleton:parts_of_test:Strict\n    nesterov true")["x"].lr == "nesterov true"  # it may be meant
    error = refused("x: !singleton:forgather_mem:Every\n    at step_end")
    assert error.hint == "is a ':' missing after 'at'?"


def test_nothing_is_built_where_an_argument_can_not_fit(parts):
    error = refused(
        "a: !singleton:parts_of_test:Part\nb: !dlist\n  c: !singleton:parts_of_test:Strict {lr: 1, momentun: 2}"
    )
    assert (error.path, error.hint) == ("$.b.c", "did you mean 'momentum'?")
    assert parts.made == []


def test_a_module_that_is_not_there_is_an_error_at_its_call(parts):
    assert refused("x: !singleton:parts_of_tset:Strict", Policy(allow=["parts_of_tset"])).path == "$.x"


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        ("Strict {}", "missing argument 'lr'", "it takes lr, momentum, nesterov"),
        ("Strict [1, 2, 3]", "too many positional arguments (3, at most 2)", None),
        ("Strict {arg0: 1, lr: 2}", "argument 'lr' is given twice, by position 0 and by name", None),
        ("Strict {lr: 1, zzz: 2}", "unknown argument 'zzz'", "it takes lr, momentum, nesterov"),
        ("positional {a: 1, b: 2, c: 3}", "argument 'a' is taken by position only", "write arg0"),
        ("positional [1]", "missing arguments 'b', 'c'", "it takes a, b, c"),
        ("zero [1]", "too many positional arguments (1, at most 0)", None),
        ("zero {x: 1}", "unknown argument 'x'", "it takes no arguments"),
    ],
)
def test_arguments_that_do_not_fit(parts, call, said, hint):
    error = refused(f"x: !singleton:parts_of_test:{call}")
    assert said in error.message
    assert error.hint == hint


def test_what_python_accepts_is_never_refused(parts):
    assert build("x: !singleton:parts_of_test:tolerant {lr: 1, old: 2}") == {"x": 1}


def test_all_refused_names_are_listed_before_anything_is_imported_or_built(parts):
    text = """\
        a: !singleton:parts_of_test:zero
        b: !partial:nowhere.one:f [!singleton:two:g []]
        c: !meta:parts_of_test:nodes [!call:three:h []]
    """
    error = refused(text)
    assert "nowhere.one:f" in error.message
    assert "two:g" in error.message
    assert "three" not in error.message
    assert error.path == "$.b"
    assert parts.made == []
