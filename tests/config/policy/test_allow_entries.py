"""Entries are added to a pyproject.toml without touching anything else in it."""

import json
import os
import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.policy.allow_entries import add_entries, entries_of_folder

TEXTS = {
    "no file": None,
    "an empty file": "",
    "another table": "[project]\nname = 'x'\n",
    "no newline at the end": "[project]\nname = 'x'",
    "an empty table": "[tool.forgather_mem]\n",
    "an empty table at the end": "[tool.forgather_mem]",
    "a table with other keys": "[tool.forgather_mem]\nother = 1\n\n[tool.z]\nallow = ['not this']\n",
    "an empty list": "[tool.forgather_mem]\nallow = []\n",
    "a list on one line": "[tool.forgather_mem]\nallow = ['a', \"b\"]\nz = 1\n",
    "a list on one line with a comma": "[tool.forgather_mem]\nallow = ['a', 'b', ] # why\n",
    "a list of several lines": "[tool.forgather_mem]\nallow = [\n'a', # first ]\n'b'  # second\n]\n[tool.z]\nx = 2\n",
    "a bracket in a string": "[tool.forgather_mem]\nallow = ['a', 'b', 'x[0]']\n",
    "a comment at the end": "[tool.forgather_mem] # ours\nallow = ['a', # one\n'b', # two\n]\n",
    "spaces": "  [ tool . forgather_mem ]\n  allow   =   [ 'a' ]\n",
    "carriage returns": "[tool.forgather_mem]\r\nallow = ['a']\r\n",
    "a table before with the same key": "[tool.a]\nallow = ['z']\n[tool.forgather_mem]\nallow = ['a']\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_entries_are_added_and_all_else_stays(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    before = {}
    if text is not None:
        path.write_bytes(text.encode())
        before = tomllib.loads(text)
    old = entries_of_folder(tmp_path)
    assert add_entries(tmp_path, ["my_module", "json:JSONDecoder", "my_module"]) == path
    assert entries_of_folder(tmp_path) == ["my_module", "json:JSONDecoder", *old]
    after = tomllib.loads(path.read_bytes().decode())
    after["tool"]["forgather_mem"].pop("allow")
    before.setdefault("tool", {}).setdefault("forgather_mem", {}).pop("allow", None)
    assert after == before
    for comment in ("# first ]", "# second", "# why", "# ours", "# two"):
        assert (comment in path.read_text()) == (text is not None and comment in text)
    assert add_entries(tmp_path, ["my_module"])
    assert entries_of_folder(tmp_path) == ["my_module", "json:JSONDecoder", *old]


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\nforgather_mem = {allow = ['a']}\n",
        "tool.forgather_mem.allow = ['a']\n",
        "[tool.'forgather_mem']\nallow=['a']\n",
    ],
)
def test_a_table_written_in_another_way_is_left_alone_with_advice(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r'write allow = \["b", "a"\] in \[tool\.forgather_mem\]'):
        add_entries(tmp_path, ["b"])
    assert path.read_text() == text


entries = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=6)


@given(entries, entries)
def test_any_entries_survive(tmp_path_factory, old, new):
    folder = tmp_path_factory.mktemp("project")
    written = json.dumps(old, ensure_ascii=False).replace("\x7f", "\\u007f")
    text = "[project]\nx = 1\n[tool.forgather_mem]\nallow = " + written + "\ny = [2]\n"
    (folder / "pyproject.toml").write_bytes(text.encode())
    add_entries(folder, new)
    assert entries_of_folder(folder) == [*(entry for entry in dict.fromkeys(new) if entry not in old), *old]


@pytest.mark.parametrize("value", ["[" * 50_000, "{a=" * 50_000, '"x"' + "#" * 1_000_000])
def test_a_file_that_is_nested_too_deeply_or_too_large_is_a_value_error(tmp_path, value):
    (tmp_path / "pyproject.toml").write_text("[tool.forgather_mem]\nallow = " + value)
    for call in (lambda: entries_of_folder(tmp_path), lambda: add_entries(tmp_path, ["a"])):
        with pytest.raises(ValueError, match=r"pyproject\.toml: (lists or tables are nested too deeply|it has more)"):
            call()


def test_mode_and_line_ends_stay(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b"[tool.forgather_mem]\r\nallow = []\r\n")
    path.chmod(0o604)
    add_entries(tmp_path, ["a"])
    assert (path.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o604, ["pyproject.toml"])


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b'\xef\xbb\xbf[tool.forgather_mem]\r\nallow = ["a"]\r\n')
    assert entries_of_folder(tmp_path) == ["a"]
    add_entries(tmp_path, ["b"])
    assert entries_of_folder(tmp_path) == ["b", "a"]


def test_a_file_that_changes_is_read_again_and_what_was_read_is_nobodys(tmp_path):
    path = tmp_path / "pyproject.toml"
    for entry in ("a", "b", "b"):
        path.write_text(f"[tool.forgather_mem]\nallow = [{entry!r}]\n")
        found = entries_of_folder(tmp_path)
        assert found == [entry]
        found.append("os")
    path.write_text("[tool.forgather_mem]\nallow = 'b'\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="a list of names"):
            entries_of_folder(tmp_path)


def test_a_long_line_of_numbers_is_no_long_key(tmp_path):
    text = f'[tool.other]\nsizes = [{"0.5, " * 400}]\n[tool.forgather_mem]\nallow = ["a"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert entries_of_folder(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool = 5\n", "is not a table"),
        ("tool.forgather_mem = 5\n", "is not a table"),
        (".".join(["a"] * 20_000) + " = 1\n[tool.forgather_mem]\n", "its keys have too many parts"),
        (
            "[tool.forgather_mem]\n" + "".join(f"k{i}{'.a' * 98} = 1\n" for i in range(1_000)),
            "its keys have too many parts",
        ),
    ],
    ids=["no table of tools", "no table of ours", "a long key", "many keys"],
)
def test_a_hostile_pyproject_is_refused_at_once(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)
    began_s = time.thread_time()
    with pytest.raises(ValueError, match=message):
        add_entries(tmp_path, ["my_module"])
    assert time.thread_time() - began_s < 1
    assert (tmp_path / "pyproject.toml").read_text() == text


@pytest.mark.parametrize(
    "text", ["[tool.forgather_mem]\nallow = 'x'", "[tool.forgather_mem]\nallow = [1]", "[tool.forgather_mem\n"]
)
def test_a_broken_pyproject_is_named(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=r"pyproject\.toml"):
        entries_of_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[tool.other]\nallow = ['os']", "[project]\nname = 'forgather_mem'", "tool = 3"])
def test_other_pyprojects_open_nothing(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    assert entries_of_folder(tmp_path) == []
