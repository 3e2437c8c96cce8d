"""The options that several template commands have, and what holds for each option of any."""

import ast
import importlib
import inspect
import os
from pathlib import Path

import pytest

from forgather_mem.cli.app import COMMANDS, OF_TEMPLATES
from forgather_mem.cli.options import parse_settings
from forgather_mem.cli.parser import CommandParser

DOCS = "".join(path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "docs").glob("*.md"))


@pytest.mark.parametrize("name", [*COMMANDS])
def test_each_option_is_explained_and_used(name):
    module = importlib.import_module(f"forgather_mem.cli.{'templates' if name in OF_TEMPLATES else name}")
    parser = CommandParser(name, "")
    getattr(module, f"{name}_arguments", module.add_arguments)(parser)
    options = [one for one in parser._actions if one.option_strings and one.dest != "help"]
    unnamed = [one.option_strings for one in options if not any(option in DOCS for option in one.option_strings)]
    assert unnamed == [], "a page of docs/ says what it is for"
    command = ast.parse(inspect.getsource(getattr(module, name))).body[0]
    read = {node.id for node in ast.walk(command) if isinstance(node, ast.Name)}
    if name != "run":  # tests/cli/test_run.py follows its options to who needs them
        assert [one.dest for one in parser._actions if one.dest not in read | {"help"}] == [], "nobody reads it"


def test_settings_are_yaml_values_under_dotted_keys():
    settings = ["a=1", "b=x", "c=[1, {d: ~}]", "e.f.g=1e-4", "e.f.h=on", "i=", "j=a=b", "k='1'"]
    expected = {"a": 1, "b": "x", "c": [1, {"d": None}], "e": {"f": {"g": 1e-4, "h": True}}, "i": None, "j": "a=b"}
    assert parse_settings(settings) == {**expected, "k": "1"}


def test_a_template_may_be_a_file_anywhere(cli, here, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert cli("pp", here / "train.yaml")[0] == 0
    assert cli("pp", os.path.relpath(here / "train.yaml"))[0] == 0
    assert cli("pp", "train.yaml")[0] == 1
    assert cli("pp", "-p", here, "train.yaml")[0] == 0
