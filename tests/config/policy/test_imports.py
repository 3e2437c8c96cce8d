"""Allowed names to objects: modules and files, and where an object is defined."""

import sys

import pytest

from forgather_mem.config.policy.imports import import_file
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError
from tests.config.policy.uses import use


def test_a_wrapped_function_is_judged_by_what_it_wraps(write):
    write(
        decorated="""
        import contextlib, functools
        @functools.lru_cache
        def cached(): return 1
        @contextlib.contextmanager
        def manager(): yield
        """
    )
    policy = Policy(allow=["decorated"])
    assert policy.load(use("decorated:cached"))() == 1
    assert policy.load(use("decorated:manager")).__name__ == "manager"


def test_an_exact_name_is_not_reached_through_an_instance(write):
    write(objects="class A:\n    def run(self): return 1\na = A()")
    with pytest.raises(TemplateError, match="can only lead through classes"):
        Policy(allow=["objects:a.run"]).load(use("objects:a.run"))


def test_the_word_after_the_colon_may_be_a_module_that_the_left_one_contains(write):
    write({"box/__init__": "from box import part\nfrom os import path", "box/part": "class C: pass"})
    assert Policy(allow=["box"]).load(use("box:part.C")).__name__ == "C"
    assert Policy(allow=["box"]).load(use("box.part.C")).__name__ == "C"
    with pytest.raises(TemplateError):
        Policy(allow=["box"]).load(use("box:path.join"))


def test_a_file_is_opened_by_its_real_path(write, monkeypatch):
    folder = write({"cb": "class Mine: pass\nfrom json import JSONDecoder", "other/cb": "class Mine: x = 2"})
    monkeypatch.chdir(folder)
    (folder / "link.py").symlink_to(folder / "cb.py")
    policy = Policy(allow_files=["cb.py"])
    assert policy.load(use("cb.py:Mine")).__name__ == "Mine"
    assert policy.load(use("./other/../cb.py:Mine")) is policy.load(use("link.py:Mine"))
    assert policy.load(use(f"{folder}/cb.py:Mine")) is policy.load(use("cb.py:Mine"))
    assert not policy.verdict("other/cb.py:Mine").allowed
    assert not policy.verdict("other/cb.py:Mine", str(folder)).allowed
    with pytest.raises(TemplateError, match=r"defined in json\.decoder"):
        policy.load(use("cb.py:JSONDecoder"))


def test_a_relative_file_is_looked_up_beside_the_template_then_in_the_working_folder(write, monkeypatch, tmp_path):
    folder = write(
        {"here/cb": "class A: where = 'here'", "there/cb": "class A: where = 'there'", "here/only": "class B: pass"}
    )
    monkeypatch.chdir(folder / "here")
    policy = Policy(allow_files=[folder])
    assert policy.load(use("cb.py:A", directory=str(folder / "there"))).where == "there"
    assert policy.load(use("cb.py:A")).where == "here"
    assert policy.load(use("only.py:B", directory=str(folder / "there"))).__name__ == "B"


def test_a_misspelt_file_is_answered_with_the_near_one(write):
    folder = write(callbacks="class A: pass")
    said = Policy(allow_files=[folder]).verdict("calbacks.py:A", str(folder)).why
    assert said.endswith("in the working folder; did you mean 'callbacks.py'?)")


def test_two_files_with_one_base_name_are_two_modules(write):
    folder = write({"a/cb": "class A: x = 1", "b/cb": "class A: x = 2"})
    policy = Policy(allow_files=[folder])
    one, two = policy.load(use(f"{folder}/a/cb.py:A")), policy.load(use(f"{folder}/b/cb.py:A"))
    assert (one.x, two.x) == (1, 2)
    assert one.__module__ != two.__module__
    assert sys.modules[one.__module__].A is one


def test_a_changed_file_is_read_again(write):
    folder = write(cb="class A: x = 1")
    policy = Policy(allow_files=[folder / "cb.py"])
    first = policy.load(use(f"{folder}/cb.py:A"))
    assert policy.load(use(f"{folder}/cb.py:A")) is first
    write(cb="class A: x = 2")
    assert policy.load(use(f"{folder}/cb.py:A")).x == 2


def test_a_file_that_fails_leaves_nothing_behind(write):
    folder = write(good="x = 1", bad="from . import good\nraise RuntimeError('no')")
    before = set(sys.modules)
    with pytest.raises(RuntimeError):
        import_file(folder / "bad.py")
    assert set(sys.modules) == before


def test_a_module_that_fails_leaves_nothing_behind(write):
    write(failing="import json\nraise RuntimeError('no')")
    before = set(sys.modules)
    with pytest.raises(RuntimeError):
        Policy(allow=["failing"]).load(use("failing:f"))
    assert set(sys.modules) - before <= {"json"}


def test_relative_imports_of_a_file_look_in_the_searchpath(write):
    folder = write({"src/layer": "from .part import SIZE\nclass Layer: size = SIZE", "parts/part": "SIZE = 5"})
    where = f"{folder}/src/layer.py:Layer"
    policy = Policy(allow_files=[folder / "src", folder / "parts"])
    assert policy.load(use(where, directory=str(folder), searchpath=["parts"])).size == 5
    with pytest.raises(TemplateError, match="holds no allowed file"):
        Policy(allow_files=[folder / "src/layer.py"]).load(use(where, directory=str(folder), searchpath=["parts"]))


def test_a_file_imports_its_neighbours_without_a_searchpath(write):
    folder = write(near="SIZE = 7", layer="from .near import SIZE\nclass Layer: size = SIZE")
    assert Policy(allow_files=[folder / "layer.py"]).load(use(f"{folder}/layer.py:Layer")).size == 7


def test_a_missing_module_or_name_is_one_sentence(write):
    write(present="class Callback: pass")
    policy = Policy(allow=["absent_module", "present"])
    with pytest.raises(TemplateError, match="there is no module 'absent_module'"):
        policy.load(use("absent_module.x:Y"))
    with pytest.raises(TemplateError, match="present has no 'Calback'") as caught:
        policy.load(use("present:Calback"))
    assert caught.value.hint == "did you mean 'Callback'?"
    write(present2="x = 1")
    with pytest.raises(TemplateError, match="is neither a class nor a function"):
        Policy(allow=["present2"]).load(use("present2:x"))


def test_a_folder_that_is_called_like_an_open_package_is_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "forgather" / "ml"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "tb_logger.py").write_text("open('ran', 'w')\nclass TBLogger: pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = Policy().load(use("forgather.ml.tb_logger:TBLogger"))
    assert loaded.__module__.startswith("forgather_mem.callbacks")
    assert "forgather" not in sys.modules
    assert not (tmp_path / "ran").exists()
