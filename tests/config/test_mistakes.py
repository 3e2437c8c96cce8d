"""What people write by mistake, and what `check` and `load_callbacks` answer: what it is, where, and what to do."""

import re
from pathlib import Path

import pytest
import yaml

from forgather_mem import load_callbacks
from forgather_mem.cli.app import dispatch
from forgather_mem.errors import TemplateError

CHILD = '-- extends "callbacks/memory.yaml"\n\n[callback_list]\n'
MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
NOTES = ("another target",)  # whoever names it may build it


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["name"])
def test_a_mistake_is_answered_with_what_where_and_what_to_do(capsys, mistake):
    Path("t.yaml").write_text(mistake["template"])
    code = dispatch(["check", "t.yaml"])
    with pytest.raises(TemplateError) as refused:
        load_callbacks("t.yaml")
    assert code == (0 if mistake["name"] in NOTES else 1)
    for said in (capsys.readouterr().out, str(refused.value)):
        assert said.startswith(f"t.yaml:{mistake['line'] or ''}")
        for part in (mistake["wrong"], mistake["cure"]):
            assert part in re.sub(r"\s+", " ", said)


def test_a_null_for_nothing_is_a_note_and_one_for_what_a_merge_brings_is_none(capsys):
    Path("t.yaml").write_text(f"{CHILD}    == super()\n    my_own: null\n    gc: null\n")
    assert dispatch(["check", "t.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("t.yaml:5:5: there is no 'my_own' to remove\n")
    assert out.endswith("t.yaml: 1 note: trainer_callbacks = ClearCacheCallback, TBMemoryLogger\n")
    Path("t.yaml").write_text(f"{CHILD}    == super()\ngc: null\n")
    assert dispatch(["check", "t.yaml"]) == 1
    assert "t.yaml:5:1: 'gc' is a target of its own here, which changes nothing" in capsys.readouterr().out
    Path("t.yaml").write_text(f"{CHILD}    == super()\n    gc: null\n    == super()\n")
    assert dispatch(["check", "t.yaml"]) == 0
    assert "is printed twice: is there a second == super()?" in capsys.readouterr().out
    merged = ".all: &all {gc: !call:random:Random [], other: !call:random:Random []}\n"
    Path("t.yaml").write_text(f"{merged}trainer_callbacks: !dlist\n    <<: *all\n    gc: null\n")
    assert dispatch(["check", "t.yaml"]) == 0
    assert capsys.readouterr().out == "t.yaml: no problems found: trainer_callbacks = Random\n"


def test_an_empty_list_with_a_key_for_nothing_is_no_mistake(capsys):
    Path("t.yaml").write_text("trainer_callbacks: !dlist\n    null: ~\n")
    assert dispatch(["check", "t.yaml"]) == 0
    assert capsys.readouterr().out == "t.yaml: no problems found: trainer_callbacks = nothing\n"


def test_what_has_no_effect_is_told(capsys):
    Path("t.yaml").write_text('-- extends "callbacks/memory.yaml"\n-- set every_step = 5\n')
    assert dispatch(["check", "t.yaml"]) == 1
    assert capsys.readouterr().out.startswith("t.yaml:2:1: no template uses the variable 'every_step'\n")
    Path("t.yaml").write_text(f"{CHILD}    == super()\n    gc: null\ntrainer_callbacks: !list []\n")
    assert dispatch(["check", "t.yaml"]) == 0
    assert capsys.readouterr().out.startswith("t.yaml:6:1: 'trainer_callbacks' is given anew; what stands in it above")
