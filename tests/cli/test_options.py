"""The options that several template commands have."""

import os

from forgather_mem.cli.options import parse_settings


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
