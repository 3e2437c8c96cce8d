"""From a name to objects: the environment, the config, load_callbacks."""

import contextlib
import datetime
import pickle
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.callbacks import PeakMemory
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy import policy as policies
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError
from forgather_mem.load import load_callbacks

BASE = """\
-- set ns = namespace(days=2)
[define]
.define: &delta !singleton:datetime:timedelta { days: {{ ns.days }} }

[callback_list]
trainer_callbacks: &trainer_callbacks !dlist:@trainer_callbacks
    gc: *delta
    clear: !factory:datetime:timedelta { hours: {{ hours | default(1) }} }
"""

CHILD = """\
-- extends 'base.yaml'
[callback_list]
    == super()
    gc: ~
    mine: !singleton:datetime:date [2024, 1, {{ day }}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "child.yaml").write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORGATHER_MEM_ALLOW", raising=False)
    return tmp_path


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(textwrap.dedent(text))


def test_a_child_template_replaces_and_drops_callbacks_by_key():
    env = ConfigEnvironment()
    assert env.load("base.yaml").construct("trainer_callbacks") == [datetime.timedelta(2), datetime.timedelta(hours=1)]
    config = env.load("child.yaml", day=3, hours=5)
    assert config.construct("trainer_callbacks") == [datetime.timedelta(hours=5), datetime.date(2024, 1, 3)]
    assert config.targets == ("trainer_callbacks",)
    assert "gc: ~" in config.text


def test_construct_takes_a_target_several_or_none():
    config = ConfigEnvironment().load_from_string("a: 1\nb: [2]\n.c: 3\n")
    assert config.construct("a") == 1
    assert config.construct(["b", "a"]) == {"b": [2], "a": 1}
    assert config.construct([]) == {}
    assert config.construct() == config.construct(None) == {"a": 1, "b": [2]}


def test_construct_always_gives_new_objects_and_indexing_shares_one_construction():
    config = ConfigEnvironment().load_from_string(
        "a: &a !singleton:dict {x: 1}\nb: [*a]\nn: &n !singleton:list [[]]\nm: *n"
    )
    assert config.construct("a") is not config.construct("a")
    assert config["a"] is config["a"]
    assert config["b"][0] is config["a"]
    assert config["n"] is config["m"]
    assert config["a"] is not config.construct("a")


def test_a_config_is_a_collection_of_its_targets():
    config = ConfigEnvironment().load_from_string("a: 1\nb: 2\n")
    assert (list(config), len(config), "a" in config, "c" in config, 3 in config) == (["a", "b"], 2, True, False, False)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("trainer: 1", "trainr", "did you mean 'trainer'?"),
        ("a: 1\nb: 2", "zzz", "the targets are a, b"),
        ("[1]", "a", "the document has no targets"),
        (".define: 1", ".define", "the document has no targets"),
    ],
)
def test_an_unknown_target_is_an_error_with_the_nearest(text, name, hint):
    config = ConfigEnvironment().load_from_string(text)
    for ask in (config.construct, config.__getitem__, lambda name: config.construct([name])):
        with pytest.raises(TemplateError) as caught:
            ask(name)
        assert (caught.value.message, caught.value.hint) == (f"there is no target {name!r}", hint)


def test_context_vars_are_live_objects_and_the_text_is_always_there():
    config = ConfigEnvironment().load_from_string("m: !var model\ntext: !var pp_config\n# {{ 1 + 1 }}")
    live = object()
    assert config.construct("m", context_vars={"model": live}) is live
    assert config.construct("text") == config.text == "m: !var model\ntext: !var pp_config\n# 2"
    assert config.construct("text", context_vars={"pp_config": "mine"}) == "mine"
    with pytest.raises(TemplateError, match="the variable 'model' has no value"):
        config.construct("m")


def test_preprocess_gives_the_text_and_the_templates_that_are_used():
    env = ConfigEnvironment()
    assert "mine: !singleton:datetime:date [2024, 1, 4]" in env.preprocess("child.yaml", day=4)
    assert env.preprocess_from_string("a: {{ b }}", b=1) == "a: 1"
    found = env.find_referenced_templates("child.yaml", day=1)
    assert [(level, name) for level, name, _ in found] == [(0, "child.yaml"), (1, "base.yaml")]
    assert Path(found[1][2]).resolve() == Path("base.yaml").resolve()


def test_the_library_is_searched_last(folder):
    assert ConfigEnvironment(folder).load("callbacks/memory.yaml").targets == ("trainer_callbacks",)
    write("callbacks/memory.yaml", "mine: 1\n")
    assert ConfigEnvironment(folder).load("callbacks/memory.yaml").targets == ("mine",)


def test_an_error_names_the_file_the_line_and_the_path_of_the_original():
    write(
        "sub/wrong.yaml",
        """\
        -- extends 'base.yaml'

        [callback_list]
            == super()
            mine: !singleton:torch.optim:AdamW
                lrr: 1e-3
    """,
    )
    with pytest.raises(TemplateError) as caught:
        ConfigEnvironment(["sub", "."]).load("wrong.yaml").construct("trainer_callbacks")
    error = caught.value
    assert (error.template, error.line, error.column, error.path) == ("wrong.yaml", 6, 9, "$.trainer_callbacks.mine")
    assert error.source_line.strip() == "lrr: 1e-3"
    assert error.hint == "did you mean 'lr'?"
    assert "callback_list" in error.chain
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_constructor_that_raises_is_named_with_the_place_in_the_parent_template():
    write("bad.yaml", "-- extends 'base.yaml'\n-- set hours = 'many'\n")
    with pytest.raises(TemplateError) as caught:
        ConfigEnvironment().load("bad.yaml").construct("trainer_callbacks")
    assert (caught.value.template, caught.value.line) == ("base.yaml", 8)
    assert "datetime:timedelta raised TypeError" in caught.value.message
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.fixture
def my_module(folder, monkeypatch):
    write("my_module/__init__.py", "")
    write(
        "my_module/callbacks.py",
        "class MyCallback:\n    on_init_end = None\n    def __init__(self, patience=1): self.patience = patience\n",
    )
    write(
        "my.yaml",
        "trainer_callbacks: !list:@cb\n    - !singleton:my_module.callbacks:MyCallback\n        patience: 3\n",
    )
    monkeypatch.syspath_prepend(folder)
    yield
    for name in ("my_module", "my_module.callbacks"):
        sys.modules.pop(name, None)


def test_a_refused_name_is_opened_by_following_the_message(my_module):
    with pytest.raises(TemplateError) as caught:
        load_callbacks("my.yaml")
    assert "'my_module.callbacks:MyCallback' is not on the allow list; nothing was imported" in str(caught.value)
    assert 'allow=["my_module"]' in caught.value.hint
    assert "my_module" not in sys.modules
    (callback,) = load_callbacks("my.yaml", allow=["my_module"])
    assert callback.patience == 3
    assert ConfigEnvironment(allow=["my_module"]).load("my.yaml")["trainer_callbacks"][0].patience == 3


def test_a_file_beside_the_template_is_found_and_allowed_by_its_path(folder):
    write("deep/parts.py", "class part:\n    def on_init_end(self): ...\n")
    write("deep/t.yaml", "trainer_callbacks:\n    - !singleton:parts.py:part\n")
    with pytest.raises(TemplateError, match=r"parts\.py:part' is not on the allow list"):
        load_callbacks("t.yaml", searchpath="deep")
    assert len(load_callbacks("t.yaml", searchpath="deep", allow_files=["deep/parts.py"])) == 1
    assert len(load_callbacks(folder / "deep" / "t.yaml", allow_files=["deep/parts.py"])) == 1


def test_load_callbacks_gives_a_new_list_and_takes_variables_and_targets():
    write("other.yaml", "cbs: !tuple [!var {{ name }}]\nscalar: 5\n")
    asked = {"target": "cbs", "context_vars": {"x": PeakMemory()}, "name": "x"}
    first, second = load_callbacks("other.yaml", **asked), load_callbacks("other.yaml", **asked)
    assert first == second == [asked["context_vars"]["x"]]
    assert first is not second
    with pytest.raises(TemplateError, match=r"other.yaml:1:14: !var x in 'cbs' is no callback"):
        load_callbacks("other.yaml", **(asked | {"context_vars": {"x": 1}}))
    write("made.yaml", "cbs: !call:list [[!call:len [[]]]]\n")
    with pytest.raises(TemplateError, match=r"made.yaml:1:1: int in 'cbs' is no callback"):
        load_callbacks("made.yaml", target="cbs")
    with pytest.raises(TemplateError, match="the target 'scalar' is no list of callbacks; it is 5"):
        load_callbacks("other.yaml", target="scalar", name="x")
    with pytest.raises(TemplateError, match="there is no target 'trainer_callbacks'"):
        load_callbacks("other.yaml", name="x")


def test_a_policy_and_allow_together_are_refused():
    with pytest.raises(ValueError, match="not both"):
        ConfigEnvironment(allow=["x"], policy=Policy())


def test_a_chain_of_2000_nodes_loads_and_builds_when_the_depth_is_raised():
    text = "x: " + "!singleton:list [[" * 2000 + "]]" * 2000
    made = ConfigEnvironment(budgets=Limits(depth=5000)).load_from_string(text).construct("x")
    levels = 1
    while made:
        (made,), levels = made, levels + 1
    assert levels == 2000


def test_what_check_needs_is_known_without_building(my_module):
    write(
        "all.yaml",
        """\
        a: !singleton:datetime:timedelta { days: !var days }
        b: !partial:my_module.callbacks:MyCallback { patiense: 1 }
        c: !singleton:nowhere:at_all [!var { name: more, default: 1 }]
        d: !singleton:torch.optim:AdamWW []
        e: !dlist { x: 1, x: 2 }
    """,
    )
    config = ConfigEnvironment(allow=["my_module"]).load("all.yaml")
    assert [(use.name, use.at, use.error("").path) for use in config.names()] == [
        ("datetime:timedelta", "all.yaml:1:4", "$.a"),
        ("my_module.callbacks:MyCallback", "all.yaml:2:4", "$.b"),
        ("nowhere:at_all", "all.yaml:3:4", "$.c"),
        ("torch.optim:AdamWW", "all.yaml:4:4", "$.d"),
    ]
    assert [(node.variable, node.has_default) for node in config.variables()] == [("days", False), ("more", True)]
    assert [error.message for error in config.misfits()] == [
        "unknown argument 'patiense' of my_module.callbacks:MyCallback",
        "torch.optim has no 'AdamWW'",
    ]
    assert [error.message for error in config.misfits(["a", "c"])] == []
    assert [use.name for use in config.names(["a"])] == ["datetime:timedelta"]
    (repeat,) = config.graph.redeclared
    assert (repeat.what, str(config.graph.place(repeat.first))) == ("x", "all.yaml:5:13")


def test_unsafe_any_pastes_values_and_allows_every_name():
    policies._warn_unsafe.cache_clear()  # it warns once per process
    env = ConfigEnvironment(policy=Policy.UNSAFE_ANY)
    config = env.load_from_string("x: !singleton:{{ name }} [2, 3]\ny: {{ raw }}", name="operator:add", raw="[1]")
    with pytest.warns(RuntimeWarning, match="UNSAFE_ANY"):
        assert config.construct() == {"x": 5, "y": [1]}


PIECES = (
    "a", "b: ", "- ", "\n", "\n  ", "&x ", "*x", "<<: ", "{", "}", "[", "]", ", ", "'", '"', "1", "1e9", "~", "# c",
    "!singleton:dict ", "!factory:list ", "!partial:int ", "!dlist ", "!var v", "!call:datetime:date [1, 2, 3]",
    "!singleton:sum ", "!meta:len ", "!singleton:os:system ", "!tuple ", ".define: ", "args: ", "kwargs: ", "\x00",
    "{{ x }}", "{{ 1 / 0 }}", "{{ undefined }}", "{% if x %}", "{% endif %}", "-- set y = 2\n", "[block]\n", "== x\n",
    "{{ x | toyaml }}", "##",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
    | st.binary(max_size=80).map(lambda b: b.decode("latin-1"))
)
def test_any_text_gives_objects_or_one_of_our_errors(text):
    Path("any.yaml").write_text(text, encoding="utf-8")
    # In this process: a new one takes a tenth of a second
    environment = ConfigEnvironment(policy=Policy(allow_files=["."]))
    with contextlib.suppress(TemplateError):
        environment.load("any.yaml", x="value: [").construct(context_vars={"v": object()})
