"""Errors that users see: bounded, printable, picklable, with the name that was meant."""

import copy
import io
import pickle
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem import errors

TEXT = st.none() | st.text(max_size=3_000)


@given(st.text(max_size=3_000), TEXT, TEXT, TEXT, st.none() | st.integers(1, 5_000))
def test_whatever_is_in_an_error_its_text_is_bounded_and_moves_no_cursor(
    message: str, hint: str | None, line: str | None, chain: str | None, column: int | None
) -> None:
    error = errors.TemplateError(
        message, template="a.yaml", line=3, column=column, hint=hint, source_line=line, chain=chain
    )
    text = str(error)
    assert len(text) < errors.MAX_MESSAGE_CHARS + 200
    assert all(char.isprintable() or char == "\n" for char in text)
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.__dict__) == (text, error.__dict__)


def test_the_caret_stands_below_its_column_also_in_a_long_line() -> None:
    for column in (1, 7, 80, 200):
        text = "." * (column - 1) + "X" + "." * 300
        _, line, caret = str(errors.TemplateError("m", line=3, column=column, source_line=text)).splitlines()
        assert line[caret.index("^")] == "X"


def test_a_template_error_is_a_value_error_and_one_of_ours() -> None:
    error = errors.TemplateError("m", path="$.a", hint="do it")
    assert isinstance(error, ValueError)
    assert isinstance(error, errors.ForgatherMemError)
    assert copy.copy(error).path == "$.a"
    assert str(error) == "m\n  at $.a\n  do it"


def test_the_nearest_name_is_asked_for_and_far_ones_are_not() -> None:
    assert errors.did_you_mean("trian", ["train", "verbose", "rank"]) == "did you mean 'train'?"
    assert errors.nearest("a", ["b" * 1_000]) is None
    assert errors.nearest("name", (f"x{number}" for number in range(10**6))) is None  # of very many it looks at some
    assert errors.nearest("abcd", ["abce"], cutoff=0.9) is None


def test_flags_are_true_or_false() -> None:
    errors.check_flags("Sink", enabled=True, strict=False)
    with pytest.raises(ValueError, match=r"^Sink\(strict=1\): strict is true or false$"):
        errors.check_flags("Sink", enabled=True, strict=1)


def test_control_and_direction_characters_are_written_out() -> None:
    assert errors.escape_controls("a\n\t\x1b[2J\u202e\ud800", keep="\n") == "a\n\\t\\x1b[2J\\u202e\\ud800"
    assert errors.escape_controls("gr\u00fc\u00dfe") == "gr\u00fc\u00dfe"


def test_only_where_stderr_is_a_notebooks_a_text_goes_to_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))  # a script may import it
    errors.say("a script's")
    monkeypatch.setattr(sys, "stderr", type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})())
    errors.say("a notebook's")
    assert capsys.readouterr() == ("a notebook's\n", "a script's\n")
