"""Arguments of transformers' classes that lead to code: under other names, and by position."""

import ast
import inspect
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerCallback

from forgather_mem import actions, callbacks, probes, sinks
from forgather_mem.config.construction.resolve import Callee, Parameters, Resolver
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.policy.remote_code import PLACES, ROOTS, ArgumentCheck, entry_for_address
from forgather_mem.errors import TemplateError
from forgather_mem.testing.small_run import SmallRun, readings
from tests.test_arguments import NEEDED
from tests.training import make_trainer


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
    check = ArgumentCheck(lambda _: False)
    assert [name for name in meant if check.of_transformers("x", [], {name: "owner/name"})] == []


def test_an_argument_that_leads_to_code_is_found_by_position(tmp_path):
    text = "a: !call:transformers:FakeConfig [1, owner/model]"
    graph = ConfigEnvironment(tmp_path, policy=Policy()).load_from_string(text).graph
    parameters = Parameters(("num_layers", "backbone"), frozenset(), frozenset(), False, True)
    resolver = Resolver(graph, Policy(), {})
    callee = Callee(dict, parameters, is_guarded=True)
    with pytest.raises(TemplateError, match="backbone='owner/model' would let"):
        resolver.guard(graph.target("a"), callee, [1, "owner/model"], {}, ArgumentCheck(lambda _: False))


SINK = "a: !call:forgather_mem.sinks:TensorBoardSink"


def build(text, allow=(), context=None, **variables):
    environment = ConfigEnvironment(".", policy=Policy(allow))
    return environment.load_from_string(text, **variables).construct("a", context_vars=context)


@pytest.mark.parametrize(
    ("address", "entry"),
    [
        ("s3://bucket/runs/1", "s3://bucket/"),
        ("s3://bucket/runs/1", "s3://bucket"),
        ("s3://bucket/runs/1", "s3://"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/runs/1", "s3://bucket/runs/1"),
        ("http://host:8080/runs", "http://host:8080/"),
        ("simplecache::s3://bucket/runs", "simplecache::s3://bucket/"),
    ],
)
def test_a_person_may_allow_an_address(address, entry):
    text = SINK + f" {{logging_dir: '{address}'}}"
    with pytest.raises(TemplateError, match=r"would let .*TensorBoardSink open an address") as error:
        build(text)
    assert error.value.entries == (entry_for_address(address),)
    assert type(build(text, error.value.entries)).__name__ == "TensorBoardSink"
    assert type(build(text, [entry])).__name__ == "TensorBoardSink"


@pytest.mark.parametrize(
    ("address", "entry"),
    [
        ("s3://bucket2/x", "s3://bucket"),
        ("s3://bucket@evil/x", "s3://bucket"),
        ("s3://bucket.evil/x", "s3://bucket"),
        ("S3://bucket/x", "s3://bucket/"),
        ("s3://bucket/../other", "s3://bucket/"),
        ("s3://bucket/x::http://evil", "s3://bucket/"),
        ("http://host:80800/x", "http://host:8080"),
        ("reference::s3://bucket/x", "s3://bucket/"),
        (" s3://bucket/x", "s3://bucket/"),
        ("s3:/bucket/x", "s3://bucket/"),
    ],
)
def test_an_entry_allows_what_lies_below_it_and_nothing_that_merely_begins_like_it(address, entry):
    with pytest.raises(TemplateError, match="open an address"):
        build(SINK + f" {{logging_dir: '{address}'}}", [entry])


@pytest.mark.parametrize("address", ["s\\t3://bucket", "S3:\\n//bucket", "\\r s3:/\\t/bucket"])
def test_what_parsers_of_addresses_leave_out_hides_none(address):
    with pytest.raises(TemplateError, match="open an address"):
        build(SINK + f' {{logging_dir: "{address}"}}')


def test_an_address_that_a_person_gives_as_a_value_needs_no_entry():
    for text in (" {logging_dir: {{ folder }}}", " {logging_dir: '{{ folder }}/runs/1'}"):
        assert build(SINK + text, folder="s3://bucket")
        assert build(SINK + text.replace("folder", "where.folder"), where={"folder": "s3://bucket"})
    assert build(SINK + " {logging_dir: !var folder}", context={"folder": "s3://bucket"})
    assert build(SINK + " {logging_dir: !var folder}", context={"folder": Path("s3://bucket")})
    environment = ConfigEnvironment(policy=Policy(), global_vars={"folder": "s3://bucket"})
    assert environment.load_from_string(SINK + " {logging_dir: {{ folder }}}").construct("a")
    with pytest.raises(TemplateError, match="open an address"):
        build(SINK + " {logging_dir: '{{ folder }}://bucket'}", folder="s3")
    with pytest.raises(TemplateError, match="open an address"):  # the text of the template is no value of a person
        build("# s3://bucket/\n" + SINK + " {logging_dir: s3://bucket/}", context={"other": 1})


ENDING = r"end(?:s|ing) in (\.\w+)"  # as a sink says that refuses another


def given_as_text():
    """Each class of ours that a stranger may build, and its arguments that are text: name, argument, what it needs."""
    for module in (actions, callbacks, probes, sinks):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            for argument, parameter in inspect.signature(kind).parameters.items():
                if re.search(r"\bstr\b", str(parameter.annotation)) and argument not in ROOTS:
                    yield f"{module.__name__}:{name}", argument, {**NEEDED.get(name, {})}


@pytest.mark.fresh  # a hook stays
@pytest.mark.parametrize(("name", "argument", "needed"), [*given_as_text()])
def test_what_a_stranger_builds_of_ours_opens_no_address_and_no_file_that_is_there(
    name, argument, needed, tmp_path, own_folder
):
    Path("theirs.py").write_text("kept")
    sockets = re.compile(r"socket\.(?!__new__|gethostname)")
    events = []
    sys.addaudithook(lambda event, args: events.append(event) if sockets.match(event) else None)
    refusal = ""
    for text in ("collector.example", "127.0.0.1:9", "theirs.py"):
        try:
            made = build(f"a: !call:{name} {json.dumps(needed | {argument: text})}")
            if isinstance(made, TrainerCallback):
                make_trainer(tmp_path / "out", [made], max_steps=2, disable_tqdm=True).train()
            else:
                SmallRun(tmp_path, [readings], [made]).train()
        except TemplateError as error:
            refusal = str(error)
        assert (events, Path("theirs.py").read_text()) == ([], "kept"), "docs/security.md, promise 9: refuse it"
    if any(place in argument for place in PLACES) and argument != "output_stream":
        scheme = (re.findall(r"\b([a-z]+)://", refusal) or ["s3"])[0]  # the first that a refusal names
        text = f"{scheme}://bucket/x{''.join(re.findall(ENDING, refusal)[:1])}"
        literal = f"a: !call:{name} {json.dumps(needed | {argument: text})}"
        with pytest.raises(TemplateError, match="open an address"):
            build(literal)
        given = literal.replace(json.dumps(text), "!var given")
        assert type(build(literal, [f"{scheme}://bucket/"])) is type(build(given, context={"given": text}))


def test_an_address_is_refused_before_anything_is_built_and_check_tells_of_it(tmp_path):
    """The list before it would have been built first."""
    text = "a: [!call:list [[1]], !call:forgather_mem.sinks:TensorBoardSink {logging_dir: 's3://bucket/x'}]"
    config = ConfigEnvironment(tmp_path, policy=Policy()).load_from_string(text)
    [error] = config.misfits()
    assert error.entries == ("s3://bucket/",)
    assert "--allow s3://bucket/" in error.hint


def test_text_arguments_and_local_folders_are_not_addresses(own_folder):
    for folder in ("runs/a:b", "runs-12:30", "C:", "torch/aten::add", "a/http://b", "~/x"):
        assert build(SINK + f" {{logging_dir: '{folder}'}}")
    assert build("a: !call:forgather_mem.callbacks:TextgenCallback {prompts: ['https://example.org says']}")
    assert build("a: !call:forgather_mem.callbacks:JsonLogger {note: 'see https://example.org'}")
    assert build("a: !call:list [['s3://bucket']]") == ["s3://bucket"]  # a value, nothing that opens it


def found_in(**kwargs):
    return ArgumentCheck(lambda _: False).address("x:Y", kwargs.pop("args", ()), kwargs)


def test_an_address_is_refused_only_where_it_would_be_opened():
    for text in ("std::vector", "https://example.org", "exp:/7", "s3://bucket", "::1 is"):
        assert not found_in(run_name=text, label_names=[text], id2label={0: text}, note={"a": [text], text: 1})
        for name in ("output_dir", "path", "log_file", "comment", "filename_suffix", "resume_from_checkpoint"):
            assert found_in(**{name: text})
            assert found_in(**{name: [[text]]})
            assert found_in(config={"deep": {name: text}})
        assert found_in(args=[text])
        assert found_in(args=[[1, text]])
    shared = ["s3://bucket"]
    assert found_in(label_names=shared, output_dir=shared)
    for chain in ("reference::http://host", "a::b::s3://bucket", " ::file:/x"):
        assert found_in(run_name=chain)
        assert found_in(note={"a": [chain]})


def test_what_a_person_opened_by_name_takes_any_argument():
    text = "a: !call:forgather_mem.sinks:TensorBoardSink {logging_dir: 's3://bucket/x'}"
    assert build(text, ["forgather_mem.sinks:TensorBoardSink"])
    with pytest.raises(TemplateError, match="open an address"):
        build(text, ["forgather_mem"])


def test_a_partial_is_guarded_for_what_the_template_gives_and_free_for_what_the_caller_gives():
    name = "forgather_mem.sinks:TensorBoardSink"
    partial = build(f"a: !partial:{name} []")
    assert partial(logging_dir="s3://bucket/x")
    partial = build(f"a: !partial:{name} {{logging_dir: !call:str ['s3://bucket/x']}}")
    with pytest.raises(TemplateError, match="open an address"):
        partial()


def test_a_file_that_transformers_reads_at_once_lies_in_the_working_folder(tmp_path, own_folder):
    (tmp_path / "sub").mkdir()
    for name in ("own.json", "sub/own.json", "../outside.json"):
        (tmp_path / name).write_text("{}")
    check = ArgumentCheck(lambda _: False)
    for key in ("accelerator_config", "deepspeed", "fsdp_config"):
        for value in ("own.json", "sub/own.json", tmp_path / "own.json", {"a": 1}, None):
            assert check.of_transformers("X", [], {key: value}) is None
        for value in ("../outside.json", str(tmp_path.parent / "outside.json"), "/dev/zero", "no.json", "{}", "."):
            assert "read a file" in check.of_transformers("X", [], {key: value}).message


@given(st.from_regex(r"([a-z]{1,4}::)?[a-z0-9]{1,4}://[a-z:@/,*\\\\ \x01.]*", fullmatch=True))
def test_the_entry_that_a_refusal_names_opens_just_that(address):
    entry = entry_for_address(address)
    if entry:
        assert not Policy().allows_address(address)
        assert Policy([entry]).allows_address(address)
        assert not Policy([entry]).allows_address("evil::" + address)


@pytest.mark.parametrize("entry", ["s3://a b", "s3://*", "://x", "s3://a,b", "s3://a::http://b", "s3://a\n"])
def test_an_entry_that_is_no_address_is_a_value_error(entry):
    with pytest.raises(ValueError, match="an address has the form scheme://host/folder/"):
        Policy([entry])


def guard(policy, name, kwargs):
    """Look at the arguments of a call as a construction does, without importing what it names."""
    graph = ConfigEnvironment(policy=policy).load_from_string(f"a: !call:{name} []").graph
    callee = Callee(dict, is_guarded=policy.guards(name))
    resolver = Resolver(graph, policy, {})
    resolver.guard(graph.target("a"), callee, [], kwargs, ArgumentCheck(resolver.allows_address))


def test_a_class_of_transformers_takes_no_argument_that_leads_to_code(tmp_path, own_folder):
    (tmp_path / "evil").mkdir()
    config = "transformers:DetrConfig"
    for kwargs in (
        {"trust_remote_code": True},
        {"auto_map": {"AutoModel": "evil--modeling.Evil"}},
        {"text_config": {"deeper": [{"trust_remote_code": 1}]}},
        {"backbone_kwargs": {"trust_remote_code": True}},
        {"backbone": "./evil"}, {"backbone": "evil"}, {"backbone": "hf-hub:a/b"}, {"backbone": "owner/model"},
        {"attn_implementation": "owner/kernel"}, {"_attn_implementation": "paged|owner/kernel@v1"},
        {"attn_implementation": {"text_config": "owner/kernel"}},
        {"_attn_implementation_internal": "owner/kernel"}, {"__dict__": {"x": 1}},
        {"attribute_map": {"x": "auto_map"}}, {"text_config": {"attribute_map": {"x": "auto_map"}}},
        {"architecture": "local-dir:evil"}, {"model_args": {"checkpoint_path": "evil.pth"}},
        {"checkpoint_path": "evil.pth"}, {"pretrained_cfg": {"file": "evil.pth"}},
    ):  # fmt: skip
        with pytest.raises(TemplateError, match="run code from elsewhere"):
            guard(Policy(), config, kwargs)
        with pytest.raises(TemplateError, match="run code from elsewhere"):
            guard(Policy(allow=["transformers"]), config, kwargs)
        guard(Policy(allow=["transformers:DetrConfig"]), config, kwargs)
    harmless = {"attn_implementation": "sdpa", "backbone": "resnet50", "trust_remote_code": False, "auto_map": None}
    guard(Policy(), config, harmless)
    guard(Policy(), "forgather_mem:Rule", {"trust_remote_code": True})
