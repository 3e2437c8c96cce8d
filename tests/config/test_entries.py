"""Entries are added to a pyproject.toml without touching anything else in it."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.entries import add_entries, entries_of_folder

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
    assert entries_of_folder(tmp_path) == [*old, "my_module", "json:JSONDecoder"]
    after = tomllib.loads(path.read_bytes().decode())
    after["tool"]["forgather_mem"].pop("allow")
    before.setdefault("tool", {}).setdefault("forgather_mem", {}).pop("allow", None)
    assert after == before
    for comment in ("# first ]", "# second", "# why", "# ours", "# two"):
        assert (comment in path.read_text()) == (text is not None and comment in text)
    assert add_entries(tmp_path, ["my_module"])
    assert entries_of_folder(tmp_path) == [*old, "my_module", "json:JSONDecoder"]


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
    with pytest.raises(ValueError, match=r'write allow = \["a", "b"\] in \[tool\.forgather_mem\]'):
        add_entries(tmp_path, ["b"])
    assert path.read_text() == text


def test_a_broken_file_is_left_alone(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.forgather_mem\n")
    with pytest.raises(ValueError, match="pyproject"):
        add_entries(tmp_path, ["b"])
    assert path.read_text() == "[tool.forgather_mem\n"


entries = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=6)


@given(entries, entries)
def test_any_entries_survive(tmp_path_factory, old, new):
    folder = tmp_path_factory.mktemp("project")
    written = json.dumps(old, ensure_ascii=False).replace("\x7f", "\\u007f")
    text = "[project]\nx = 1\n[tool.forgather_mem]\nallow = " + written + "\ny = [2]\n"
    (folder / "pyproject.toml").write_bytes(text.encode())
    expected = list(dict.fromkeys([*old, *new])) if len(set(old)) == len(old) else None
    add_entries(folder, new)
    found = entries_of_folder(folder)
    assert found[: len(old)] == old
    assert set(found) == {*old, *new}
    assert expected is None or found == expected
