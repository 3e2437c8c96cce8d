"""Arguments of transformers' classes that lead to code: under other names, and by position."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from forgather_mem.config.arguments import code_argument
from forgather_mem.config.binding import Parameters
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy import Policy
from forgather_mem.config.resolve import Callee, Resolver
from forgather_mem.errors import TemplateError


def test_no_configuration_of_transformers_has_another_name_for_an_argument_that_leads_to_code():
    models = Path(find_spec("transformers").origin).parent / "models"
    maps = [
        literal
        for file in models.glob("*/configuration_*.py")
        for literal in re.findall(r"^    attribute_map.*?= (\{.*?\})$", file.read_text("utf-8"), re.M | re.S)
    ]
    meant = {value for literal in maps for value in ast.literal_eval(literal).values()}
    assert len(maps) > 50
    assert "hidden_size" in meant or "d_model" in meant
    assert [name for name in meant if code_argument([], {name: "owner/name"})] == []


def test_an_argument_that_leads_to_code_is_found_by_position(tmp_path):
    text = "a: !call:transformers:FakeConfig [1, owner/model]"
    graph = ConfigEnvironment(tmp_path, policy=Policy()).load_from_string(text).graph
    parameters = Parameters(("num_layers", "backbone"), frozenset(), frozenset(), False, True)
    resolver = Resolver(graph, Policy(), {})
    with pytest.raises(TemplateError, match="backbone='owner/model' would let"):
        resolver.check(graph.target("a"), Callee(dict, parameters), [1, "owner/model"], {})
