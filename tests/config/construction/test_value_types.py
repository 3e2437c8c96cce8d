"""Values against annotations. What a person may have meant is accepted."""

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Optional, Union

import pytest
import transformers

from forgather_mem.config.construction.value_types import accepted_by
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.source.rendered import Rendered


def as_text(
    count: int, share: float | None, flag: bool, word: str, when: Literal["step", "epoch"], names: list[str],
    options: Mapping[str, int], path: str | Path, any_of: Sequence[str], free,
    mixed: Optional[Union[int, Literal["auto"]]],  # noqa: UP045, UP007
): ...  # fmt: skip


class AsObjects:
    def __init__(self, count, share, flag, word, when, names, options, path, any_of, free, mixed): ...


AsObjects.__init__.__annotations__ = typing.get_type_hints(as_text)
SAID = {
    "count: ten": "takes int; 'ten' is text",
    "count: 2.5": "takes int; 2.5 is not whole",
    "count: [1]": "takes int; this is a list",
    "share: half": "takes float | None; 'half' is text",
    "share: {a: 1}": "takes float | None; this is a mapping",
    "flag: 'false'": "takes bool; 'false' is text",
    "when: stp": "takes Literal['step', 'epoch']; 'stp' is text",
    "when: 3": "takes Literal['step', 'epoch']; this is a number",
    "names: one": "takes list[str]; 'one' is text",
    "names: true": "takes list[str]; this is a bool",
    "options: [1]": "takes Mapping[str, int]; this is a list",
    "mixed: manual": "'manual' is text",
}
FITS = (
    "count: 1", "count: null", "count: 1e3", "count: '10'", "count: true", "share: 1", "share: '1e-4'", "flag: 0",
    "flag: null", "word: x", "word: 3", "word: true", "when: step", "names: [a]", "names: !dlist {a: x}",
    "options: {a: 1}", "path: x", "path: [x]", "any_of: x", "free: {a: [1]}", "mixed: auto", "mixed: 3", "mixed: null",
    "count: !var n", "flag: !call:sum [[1]]", "count: !partial:sum []", "share: .inf",
)  # fmt: skip


def problem(function, text):
    [(name, value)] = parse(Rendered.as_is(text)).root.entries.items()
    return accepted_by(function)[name].problem(value) if name in accepted_by(function) else None


@pytest.mark.parametrize("function", [as_text, AsObjects])
@pytest.mark.parametrize("text", SAID)
def test_what_cannot_be_meant_is_said(function, text):
    said, hint = problem(function, text)
    if function is as_text:
        assert said.endswith(SAID[text])
    assert hint == ("did you mean 'step'?" if "stp" in text else None)


@pytest.mark.parametrize("function", [as_text, AsObjects])
@pytest.mark.parametrize("text", FITS)
def test_what_may_be_meant_is_accepted(function, text):
    assert problem(function, text) is None


def test_a_name_that_is_not_pythons_own_accepts_everything():
    assert accepted_by(as_text).keys() >= {"count", "mixed"}
    assert not accepted_by(as_text).keys() & {"path", "any_of", "free"}


def test_nothing_is_claimed_for_what_python_cannot_tell():
    for function in (print, dict, int, object(), 3, type, transformers.LlamaConfig):
        assert accepted_by(function) == {}


def test_the_annotations_of_a_dataclass_count():
    takes = accepted_by(transformers.TrainingArguments)
    assert takes["num_train_epochs"].types == {"float"}
    assert problem(transformers.TrainingArguments, "max_steps: many")[0] == "takes int; 'many' is text"


def test_an_annotation_is_never_evaluated():
    def odd(a: "1 / 0", b: "__import__('os').abort()", c: "int or str", d: "(" * 200 + "int" + ")" * 200): ...  # noqa: F722

    assert accepted_by(odd).keys() <= {"d"}
