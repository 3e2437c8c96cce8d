"""What people write by mistake, and what `check` and `load_callbacks` answer: what it is, where, and what to do."""

import re
from pathlib import Path

import pytest
import yaml

from forgather_mem import load_callbacks
from forgather_mem.cli.app import dispatch
from forgather_mem.errors import TemplateError

pytestmark = pytest.mark.usefixtures("own_folder")

CHILD = '-- extends "callbacks/memory.yaml"\n\n[callback_list]\n'
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())


def checked(capsys, template, code=0):
    """What `check` says to it."""
    Path("t.yaml").write_text(template)
    assert dispatch(["check", "t.yaml"]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["name"])
def test_a_mistake_is_answered_with_what_where_and_what_to_do(capsys, mistake):
    out = checked(capsys, mistake["template"], code=1)
    with pytest.raises(TemplateError) as refused:
        load_callbacks("t.yaml")
    for said in (out, str(refused.value)):
        assert said.startswith(f"t.yaml:{mistake['line'] or ''}")
        for part in (mistake["wrong"], mistake["cure"]):
            assert part in re.sub(r"\s+", " ", said)


def test_a_null_for_nothing_is_a_note_and_one_for_what_a_merge_brings_is_none(capsys):
    out = checked(capsys, f"{CHILD}    == super()\n    my_own: null\n    gc: null\n")
    assert out.startswith("t.yaml:5:5: there is no 'my_own' to remove\n")
    assert out.endswith("t.yaml: 1 note: trainer_callbacks = ClearCacheCallback, TBMemoryLogger\n")
    clear = "!singleton:forgather_mem.callbacks:ClearCacheCallback"
    out = checked(capsys, f"{CHILD}    == super()\n    clear_cach: {clear}\n    clear_cache2: {clear}\n")
    assert out.startswith("t.yaml:5:5: 'clear_cach' adds another ClearCacheCallback\n")
    assert ("did you mean 'clear_cache'?" in out, "t.yaml: 1 note" in out) == (True, True)
    out = checked(capsys, f"{CHILD}    == super()\ngc: null\n", code=1)
    assert "t.yaml:5:1: 'gc' is a target of its own here, which changes nothing" in out
    merged = f".all: &all {{gc: {clear} {{}}, other: {clear} {{}}}}\n"
    assert checked(capsys, f"{merged}trainer_callbacks: !dlist\n    <<: *all\n    gc: null\n").endswith(
        " = ClearCacheCallback\n"
    )


def test_whoever_names_another_target_may_build_it():
    Path("t.yaml").write_text("callbacks: !list\n    - !singleton:forgather_mem.callbacks:PeakMemory\n")
    assert [dispatch(["check", "t.yaml", *more]) for more in ([], ["--target", "callbacks"])] == [1, 0]


def test_an_empty_list_with_a_key_for_nothing_is_no_mistake(capsys):
    out = "t.yaml: no problems found: trainer_callbacks = nothing\n"
    assert checked(capsys, "trainer_callbacks: !dlist\n    null: ~\n") == out


def test_what_has_no_effect_is_told(capsys):
    out = checked(capsys, '-- extends "callbacks/memory.yaml"\n-- set every_step = 5\n', code=1)
    assert out.startswith("t.yaml:2:1: no template uses the variable 'every_step'\n")
    out = checked(capsys, f"{CHILD}    == super()\n    gc: null\ntrainer_callbacks: !list []\n")
    assert out.startswith("t.yaml:6:1: 'trainer_callbacks' is given anew; what stands in it above")
