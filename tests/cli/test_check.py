"""`forgather-mem check`: names what is wrong with a template, and builds nothing."""

import re
from pathlib import Path

import pytest

from tests.cli.commands import PLAIN, TRAIN, findings
from tests.programs import printed_by


def test_check_names_each_mistake_and_imports_nothing_that_is_not_allowed(cli, here):
    code, found, raw = findings(cli, "train.yaml")
    assert code == 1
    assert [(kind, line) for kind, line, _ in found] == [("refused", 5), ("unbound", 7)]
    assert raw["findings"][0]["allow"] == ["my_own"]
    assert not (here / "imported").exists()
    _, out, _ = cli("check", "train.yaml")
    assert "--allow my_own" in out
    assert out.endswith("train.yaml: 2 findings\n")


def test_check_compares_arguments_of_what_is_allowed_and_builds_nothing(cli, here):
    assert findings(cli, "train.yaml", "--allow", "my_own", "--set", "metric=loss")[:2] == (0, [])
    assert (here / "imported").exists()
    (here / "train.yaml").write_text(TRAIN.replace("save_dir", "save_dirs"))
    code, found, raw = findings(cli, "train.yaml", "--allow", "my_own", "--set", "metric=loss")
    assert code == 1
    assert found == [("misfit", 6, "unknown argument 'save_dirs' of my_own.callbacks:Mine")]
    assert raw["findings"][0]["hint"] == "did you mean 'save_dir'?"


def test_check_says_that_nothing_is_wrong(cli):
    assert cli("check", "base.yaml") == (0, "base.yaml: no problems found: trainer_callbacks = OrderedDict\n", "")


def test_check_says_that_load_callbacks_would_find_no_list(cli, here):
    (here / "t.yaml").write_text("gc: !singleton:forgather_mem.callbacks:SimpleGarbageCollector\n")
    told = "gc = SimpleGarbageCollector; no trainer_callbacks, which load_callbacks() builds"
    assert cli("check", "t.yaml") == (0, f"t.yaml: no problems found: {told}\n", "")


@pytest.mark.parametrize("text", ["a: !var {name: metric, default: 1}", "a: !var pp_config", "a: {{ lr }}"])
def test_variables_with_a_value_are_bound(cli, here, text):
    (here / "t.yaml").write_text(text)
    settings = ["--set", "lr=1"] if "lr" in text else []
    assert findings(cli, "t.yaml", *settings)[:2] == (0, [])


def test_a_setting_that_no_template_uses_is_found(cli):
    code, found, raw = findings(cli, "base.yaml", "--set", "lrr=1")
    assert (code, found) == (1, [("unused", None, "no template uses the variable 'lrr'")])
    assert raw["findings"][0]["hint"] == "did you mean 'lr'?"
    assert findings(cli, "train.yaml", "--set", "lr=1", "--set", "metric=x", "--allow", "my_own")[0] == 0


def test_a_misspelt_part_of_a_setting_is_found(cli, here):
    (here / "t.yaml").write_text("a: {{ params.lr }}\nb: {{ params['decay'] }}\nc: {{ whole | toyaml }}\n")
    given = ["--set", "params.lr=1", "--set", "params.decay=1", "--set", "whole.beta=1", "--set", "params.notes=x"]
    assert findings(cli, "t.yaml", *given)[:2] == (0, [])
    code, found, raw = findings(cli, "t.yaml", *given, "--set", "params.decai=1")
    assert (code, found) == (1, [("unused", None, "no template uses the variable 'params.decai'")])
    assert raw["findings"][0]["hint"] == "did you mean 'decay'?"


def test_a_block_that_no_parent_has_is_found_and_told_once(cli, here):
    (here / "t.yaml").write_text("-- extends 'base.yaml'\n[quite_another]\n    x: 1\n")
    code, found, raw = findings(cli, "t.yaml")
    text = "no template that t.yaml extends has a block 'quite_another', so it is not rendered"
    assert (code, found) == (1, [("block", 2, text)])
    assert raw["findings"][0]["hint"] == "the blocks are: callbacks, head"
    code, printed, complained = cli("check", "t.yaml")
    assert code == 1
    assert printed.startswith(f"t.yaml:2:1: {text}\n   2 | [quite_another]\n")
    assert complained == ""


def test_a_redeclared_key_is_told_and_is_no_mistake(cli, here):
    (here / "again.yaml").write_text("a: 1\nb: 2\na: 3\n")
    code, found, _ = findings(cli, "again.yaml")
    assert (code, found) == (0, [("redeclared", 3, "'a' is redeclared, first at again.yaml:1:1; the last one counts")])
    assert "\nagain.yaml: 1 note: a = 3; b = 2; no trainer_callbacks" in cli("check", "again.yaml")[1]


def test_a_module_that_is_not_there_is_found(cli, here):
    (here / "t.yaml").write_text("a: !call:my_owm.callbacks:Mine []\nb: !call:my_own.callbacks:Mien [x]\n")
    code, found, _ = findings(cli, "t.yaml", "--allow", "my_own", "--allow", "my_owm")
    assert code == 1
    assert [(kind, line) for kind, line, _ in found] == [("misfit", 1), ("misfit", 2)]


def test_each_place_where_a_person_may_open_names(cli, here, monkeypatch):
    (here / "train.yaml").write_text(PLAIN)
    bound = ["train.yaml", "--set", "metric=x"]
    assert findings(cli, *bound)[0] == 1
    assert findings(cli, *bound, "--allow", "my_own")[0] == 0
    assert findings(cli, *bound, "--allow", "my_own.callbacks:Mine")[0] == 0
    monkeypatch.setenv("FORGATHER_MEM_ALLOW", "other,my_own")
    assert findings(cli, *bound)[0] == 0
    monkeypatch.delenv("FORGATHER_MEM_ALLOW")
    (here / "pyproject.toml").write_text('[tool.forgather_mem]\nallow = ["my_own"]\n')
    assert findings(cli, *bound)[0] == 0
    (here / "pyproject.toml").unlink()
    (here / "train.yaml").write_text(PLAIN.replace("my_own.callbacks:Mine", "my_own/callbacks.py:Mine"))
    code, _, raw = findings(cli, *bound)
    assert (code, raw["findings"][0]["allow"]) == (1, ["my_own/callbacks.py"])
    assert findings(cli, *bound, "--allow-file", "my_own/callbacks.py")[0] == 0
    assert findings(cli, *bound, "--allow", "my_own/callbacks.py")[0] == 0


def test_a_broken_pyproject_is_named_where_it_matters_and_only_there(cli, here):
    (here / "pyproject.toml").write_text("[tool.forgather_mem\n")
    code, _, err = cli("check", "base.yaml")
    assert code == 2
    assert "pyproject.toml" in re.sub(r"[│\s]", "", err)
    assert cli("pp", "base.yaml")[0] == 0


def test_a_fine_template_of_our_own_classes_is_checked_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from forgather_mem.cli.app import dispatch; code = dispatch(['check', 'callbacks/memory.yaml'])\n"
        "print(code, [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    names = "SimpleGarbageCollector, ClearCacheCallback, TBMemoryLogger"
    said = f"callbacks/memory.yaml: no problems found: trainer_callbacks = {names}\n0 []\n"
    assert printed_by(code, folder=tmp_path) == said
