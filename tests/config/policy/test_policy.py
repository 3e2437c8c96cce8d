"""The policy: by text before any import, by definition site after it."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from forgather_mem.config.construction.resolve import Callee, Resolver
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy import allowlist
from forgather_mem.config.policy.allow_entries import entries_of_environment, entries_of_folder, parse_entry
from forgather_mem.config.policy.imports import import_file
from forgather_mem.config.policy.names import parse_name
from forgather_mem.config.policy.policy import NameUse, Policy
from forgather_mem.config.policy.remote_code import ArgumentCheck
from forgather_mem.config.source.location import SourceLocation
from forgather_mem.errors import TemplateError


def use(name, *, line=3, directory=None, searchpath=()):
    place = SourceLocation("train.yaml", line, 8, f"cb: !singleton:{name}", None)
    return NameUse(name, place, "$.cb", directory, tuple(searchpath))


def refusal(policy, *names, **where):
    with pytest.raises(TemplateError) as caught:
        policy.check([use(name, line=3 + i, **where) for i, name in enumerate(names)])
    return str(caught.value)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into a folder of their own that can be imported, and forgets them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write_modules(sources=(), **more):
        for name, source in {**dict(sources), **more}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return tmp_path

    yield write_modules
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


# the name alone


@pytest.mark.parametrize(
    "name",
    [
        "len", "items", "getitem", "forgather_mem.callbacks:TBMemoryLogger", "forgather_mem:Rule",
        "forgather_mem.actions.clear:ClearCache", "transformers:Trainer", "transformers:TrainingArguments",
        "transformers.models.gpt2.modeling_gpt2:GPT2LMHeadModel", "torch.optim:AdamW", "torch:optim.AdamW",
        "torch.optim.AdamW", "torch.utils.tensorboard:SummaryWriter", "torch:device", "pathlib:Path",
        "forgather.ml.tb_logger:TBLogger", "forgather.ml.trainer.callbacks:TrainerControlCallback",
    ],
)  # fmt: skip
def test_what_is_open_by_default(name):
    assert Policy().verdict(name).allowed
    Policy().check([use(name)])


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "subprocess:run", "eval", "exec", "open", "getattr", "call", "type", "__import__", "print",
        "builtins:eval", "pathlib:Path.write_text", "pathlib:os.system", "torch:load", "torch:hub.load", "torch.load",
        "torch.hub:load", "torch:nn.Linear", "transformers:pipeline", "transformers:AutoModel.from_pretrained",
        "transformers:GPT2LMHeadModel.from_pretrained", "transformers:GPT2LMHeadModel.push_to_hub",
        "transformers.utils.import_utils:importlib", "transformers.dynamic_module_utils:get_class_from_dynamic_module",
        "forgather_mem:load_callbacks", "forgather_mem:ConfigEnvironment", "forgather_mem:Policy",
        "forgather_mem:attach",
        "forgather_mem.load:load_callbacks", "forgather_mem.config.policy.policy:Policy",
        "forgather_mem.reclaim.retry:retry_on_oom", "forgather_mem.loops.training_loop:TrainingLoop",
        "forgather_mem.cli.app:dispatch", "forgather_mem.engine.run:Run",
        "forgather.ml.trainer.callbacks.evil.deeper:X", "forgather.dynamic:dynamic_import", "collections:namedtuple",
        "torch.optim.lr_scheduler:torch.load", "numpy:load", "yaml:unsafe_load",
        "dict.fromkeys", "str.format", "list.append", "transformersx:Trainer", "torch.optimx:AdamW",
        "forgather_mem.callbacksx:A", "datetime:datetime.strptime", "collections.abc:Callable",
    ],
)  # fmt: skip
def test_what_is_refused_by_default(name):
    assert not Policy().verdict(name).allowed
    assert "nothing was imported" in refusal(Policy(), name)


@pytest.mark.parametrize(
    "name",
    [
        "", ":", "a:", ":b", "a:b:c", "os:system:", "a b:c", "a:b c", "a\nb:c", "os:_exit", "_os:x", "os:path._x",
        "a..b:c", ".a:b", "a.:b", "a:b.", "a-b:c", "\uff4f\uff53:system", "o\u0455:system", "os\u200b:system",
        "os:system()", "a:b[0]", "a/b:c", "..:x", "a.py:", "a.py:b:c", "a\0.py:b", "./x.py:__import__", "x" * 501,
        "a.py:\uff4f\uff53", "os:system ", " os:system", "os :system", "1a:b", "a:1b", "\u0000", "a:*", "*",
    ],
)  # fmt: skip
def test_what_is_no_name_can_not_be_opened(name):
    verdict = Policy(allow=["os", "a"], allow_files=["/"]).verdict(name)
    assert not verdict.allowed
    assert verdict.entry == ""
    assert len(refusal(Policy(), name)) < 2_000


def test_checking_a_name_imports_nothing(write):
    folder = write({"noisy": "open('ran', 'w')", "noisy_pkg/__init__": "open('ran', 'w')"})
    before = set(sys.modules)
    refusal(Policy(), "noisy:f", "noisy_pkg.x:f", "json.tool:main", "antigravity:fly_to", "turtle:Turtle")
    Policy(allow=["noisy"]).check([use("noisy:f")])
    assert set(sys.modules) == before
    assert not (folder / "ran").exists()
    assert not Path("ran").exists()


def test_a_fresh_process_checks_names_without_torch_or_yaml():
    code = """
        import sys
        from forgather_mem.config.policy.policy import Policy
        assert Policy().verdict("torch.optim:AdamW").allowed
        assert Policy().verdict("forgather.ml.tb_logger:TBLogger").allowed
        assert not Policy().verdict("torch:load").allowed
        print([name for name in ("torch", "transformers", "yaml", "jinja2") if name in sys.modules])
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


# what a person opens


def test_a_namespace_opens_what_is_defined_in_it(write):
    write(
        {"mine/__init__": "def made(): return 1", "mine/sub": "class C:\n    @classmethod\n    def make(cls): return 2"}
    )
    policy = Policy(allow=["mine"])
    assert policy.load(use("mine:made"))() == 1
    assert policy.load(use("mine.sub:C"))().make() == 2
    assert policy.load(use("mine.sub:C.make"))() == 2
    assert not policy.verdict("miner:x").allowed
    assert "'mine' allows it" in policy.verdict("mine.sub:C").why


def test_a_namespace_does_not_open_what_is_only_imported_there(write):
    write(
        borrows="""
        import functools, os, subprocess
        from json import JSONDecoder
        from os import system
        from pathlib import Path
        run = functools.partial(os.system)
        bound = [].append
        cached = functools.lru_cache(system)
        wrapped = functools.wraps(len)(lambda *args: os.system(*args))
        class Own(Path): pass
        class Callable_:
            def __call__(self): return 1
        ready = Callable_()
        """
    )
    policy = Policy(allow=["borrows"])
    for name in (
        "JSONDecoder", "system", "Path", "run", "bound", "cached", "Own.write_text", "ready", "subprocess.run",
        "os.system", "os.path.join", "Path.write_text", "Own.cwd", "functools.partial", "ready.real",
    ):  # fmt: skip
        with pytest.raises(TemplateError):
            policy.load(use(f"borrows:{name}"))
    assert policy.load(use("borrows:Own")).__name__ == "Own"
    with pytest.raises(TemplateError, match=r"defined in json\.decoder, outside borrows; it was not called") as caught:
        policy.load(use("borrows:JSONDecoder"))
    assert "--allow borrows:JSONDecoder" in caught.value.hint


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


def test_an_exact_name_opens_a_re_export_and_nothing_beside_it(write):
    write(exports="from json import JSONDecoder, JSONEncoder")
    policy = Policy(allow=["exports:JSONDecoder"])
    assert policy.load(use("exports:JSONDecoder")).__name__ == "JSONDecoder"
    for name in ("exports:JSONEncoder", "exports:JSONDecoder.decode", "json:JSONDecoder"):
        assert not policy.verdict(name).allowed


def test_an_exact_name_is_not_reached_through_an_instance(write):
    write(objects="class A:\n    def run(self): return 1\na = A()")
    with pytest.raises(TemplateError, match="can only lead through classes"):
        Policy(allow=["objects:a.run"]).load(use("objects:a.run"))


@pytest.mark.parametrize(
    "name",
    ["torch.load", "os:system", "transformers:pipeline", "getattr", "call", "pickle:loads",
     "torch.distributed.checkpoint.format_utils:dcp_to_torch_save", "transformers.modeling_utils:load_state_dict"],
)  # fmt: skip
def test_only_an_exact_entry_opens_what_can_run_code(name):
    wide = Policy(allow=["torch", "os", "builtins", "transformers", "pickle", "posix", "_pickle:loads"][:-1])
    assert not wide.verdict(name).allowed
    assert Policy(allow=[wide.verdict(name).entry]).verdict(name).allowed


def test_a_namespace_does_not_open_a_hard_name_by_another_way(write):
    write(shortcut="from shortcut_inner import system", shortcut_inner="def system(): return 1")
    assert Policy(allow=["shortcut_inner"]).load(use("shortcut_inner:system"))() == 1
    with pytest.raises(TemplateError, match="only an exact entry opens"):
        Policy(allow=["torch"]).load(use("torch:save"))


def test_the_word_after_the_colon_may_be_a_module_that_the_left_one_contains(write):
    write({"box/__init__": "from box import part\nfrom os import path", "box/part": "class C: pass"})
    assert Policy(allow=["box"]).load(use("box:part.C")).__name__ == "C"
    assert Policy(allow=["box"]).load(use("box.part.C")).__name__ == "C"
    with pytest.raises(TemplateError):
        Policy(allow=["box"]).load(use("box:path.join"))


@pytest.mark.parametrize("entry", ["*", "os.*", "", " ", "a b", "a:b:c", "_private", "a:_b", "torch.", "my module"])
def test_an_entry_that_is_no_name_is_an_error_at_once(entry):
    with pytest.raises(ValueError, match="allow="):
        Policy(allow=[entry])


def test_a_string_in_place_of_a_list_is_an_error():
    with pytest.raises(ValueError, match=r"allow=\['my_module'\]"):
        Policy(allow="my_module")


def test_entries_are_namespaces_or_exact_names():
    assert parse_entry("my_module.sub") == "my_module.sub"
    assert parse_entry("len") == parse_name("len")
    assert str(parse_entry("dict.fromkeys")) == "dict.fromkeys"


# files


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


def test_a_link_to_an_allowed_file_is_that_file_and_a_link_from_it_is_not(write, monkeypatch):
    folder = write(good="class A: pass", bad="class A: pass")
    monkeypatch.chdir(folder)
    (folder / "looks_good.py").symlink_to(folder / "bad.py")
    policy = Policy(allow_files=["good.py"])
    assert not policy.verdict("looks_good.py:A").allowed
    assert Policy(allow_files=["looks_good.py"]).verdict("bad.py:A").allowed  # what it is now


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


# where a person may write it


def test_the_pyproject_of_the_current_folder_opens_names(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.forgather_mem]\nallow = ["my_module", "json:JSONDecoder"]\n')
    assert entries_of_folder(tmp_path) == ["my_module", "json:JSONDecoder"]
    monkeypatch.chdir(tmp_path)
    assert Policy.of_person().verdict("my_module.x:Y").allowed
    assert not Policy().verdict("my_module.x:Y").allowed
    below = tmp_path / "templates"
    below.mkdir()
    monkeypatch.chdir(below)
    assert not Policy.of_person().verdict("my_module.x:Y").allowed


@pytest.mark.parametrize(
    "text",
    ["[tool.forgather_mem]\nallow = 'x'", "[tool.forgather_mem]\nallow = [1]", "[tool.forgather_mem\n"],
)
def test_a_broken_pyproject_is_named(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ValueError, match=r"pyproject\.toml"):
        entries_of_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[tool.other]\nallow = ['os']", "[project]\nname = 'forgather_mem'", "tool = 3"])
def test_other_pyprojects_open_nothing(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    assert entries_of_folder(tmp_path) == []


def test_the_environment_opens_names(monkeypatch):
    monkeypatch.setenv("FORGATHER_MEM_ALLOW", " my_module , json:JSONDecoder ,")
    assert entries_of_environment() == ["my_module", "json:JSONDecoder"]
    assert Policy.of_person().verdict("my_module:X").allowed


# what a person reads


def test_a_refusal_names_the_line_that_allows_it():
    text = refusal(Policy(), "my_module.callbacks:MyCallback")
    assert text.splitlines()[0] == (
        "train.yaml:3:8: 'my_module.callbacks:MyCallback' is not on the allow list; nothing was imported"
    )
    assert text.endswith(
        '  if you wrote or trust my_module:  --allow my_module  |  ConfigEnvironment(..., allow=["my_module"])'
        '  |  [tool.forgather_mem] allow = ["my_module"]'
    )


def test_one_refusal_lists_all_names_and_one_line_opens_exactly_these():
    names = ["my_module.a:A", "torch.nn:Linear", "my_module.b:B", "getattr", "os:system", "torch.nn:ReLU"]
    text = refusal(Policy(), *names)
    assert all(name in text for name in names)
    order = [line.strip().partition(":")[0] for line in text.splitlines()]
    assert order.index("torch") > order.index("my_module")
    assert order.count("my_module") == 2
    options = text.splitlines()[-1].partition(":  ")[2].partition("  |  ")[0].split()
    policy = Policy(allow=[entry for entry in options if entry != "--allow"])
    policy.check([use(name) for name in names])
    assert not policy.verdict("torch.nn:Conv2d").allowed
    assert not policy.verdict("os:popen").allowed


def test_a_refusal_of_very_many_names_stays_readable():
    text = refusal(Policy(), *[f"package_{i}.module:Name" for i in range(500)])
    assert len(text) < 2_500
    assert "500 names are refused" in text
    assert re.search(r"\.\.\. and 4\d\d more", text)
    assert text.endswith("forgather-mem allow TEMPLATE  lists and opens them")


def test_the_same_name_twice_is_listed_once():
    text = refusal(Policy(), "my_module:A", "my_module:A")
    assert "names are refused" not in text


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


# the default table, compared with what is installed


def modules_of_grants():
    return ["forgather_mem.callbacks", "forgather_mem.probes", "forgather_mem.actions", "forgather_mem.sinks"]


@pytest.mark.parametrize("module", modules_of_grants())
def test_every_public_name_of_our_packages_is_open(module):
    for name in importlib.import_module(module).__all__:
        assert callable(Policy().load(use(f"{module}:{name}")))


def test_every_exact_entry_exists():
    for entry in allowlist.EXACT:
        if entry.startswith("forgather_mem") and importlib.util.find_spec(parse_name(entry).module) is None:
            continue  # of a later issue
        assert callable(Policy().load(use(entry))), entry


def test_every_hard_name_that_is_installed_exists():
    roots = {"torch", "transformers", "builtins", "numpy", "yaml", "accelerate"}
    for dotted in sorted(name for name in allowlist.HARD if name.partition(".")[0] in roots):
        parts = dotted.split(".")
        found = importlib.import_module(parts[0])
        for i, part in enumerate(parts[1:], 2):
            try:
                found = getattr(found, part)
            except AttributeError:
                if importlib.util.find_spec(".".join(parts[:i])) is None:
                    assert dotted in ("transformers.commands", "torch.utils.bottleneck")  # of older versions
                break


def test_aliases_are_ours_and_open_the_same_class():
    import forgather_mem.callbacks as ours

    assert importlib.util.find_spec("forgather") is None, "these are for a machine without Forgather"
    for old, new in allowlist.ALIASES.items():
        assert old.startswith("forgather.ml.")
        name = parse_name(new)
        assert name.module == "forgather_mem.callbacks"
        if name.qualname in ours.__all__:
            assert Policy().load(use(old)) is getattr(ours, name.qualname)


def test_optimizers_and_schedulers_are_open_and_their_helpers_are_not():
    import torch

    for name in ("AdamW", "SGD", "lr_scheduler.CosineAnnealingLR", "lr_scheduler.ReduceLROnPlateau"):
        assert issubclass(Policy().load(use(f"torch.optim:{name}")), object)
    assert Policy().load(use("torch:optim.AdamW")) is torch.optim.AdamW
    for name in (
        "torch.optim.swa_utils:AveragedModel",
        "torch.optim.optimizer:defaultdict",
        "torch.optim:swa_utils",
        "torch.optim:os.system",
    ):
        with pytest.raises(TemplateError):
            Policy().load(use(name))


def test_of_transformers_only_the_named_families_are_open():
    for name in ("Trainer", "GPT2Config", "GPT2LMHeadModel", "EarlyStoppingCallback", "TrainingArguments"):
        assert Policy().load(use(f"transformers:{name}")).__module__.startswith("transformers")
    for name in ("HfArgumentParser", "TrainerState", "GenerationConfig"):
        with pytest.raises(TemplateError, match="not among the names that are open by default") as caught:
            Policy().load(use(f"transformers:{name}"))
        assert f"--allow transformers:{name}" in caught.value.hint
    for name in ("AutoModel", "AutoTokenizer", "GPT2TokenizerFast", "set_seed", "DataCollatorWithPadding"):
        assert not Policy().verdict(f"transformers:{name}").allowed
        assert Policy(allow=["transformers"]).load(use(f"transformers:{name}"))


def test_no_class_of_the_open_families_is_left_out_by_its_name():
    import transformers
    from transformers.models.auto import configuration_auto, modeling_auto

    names = {name for name in dir(transformers) if name.endswith(("Callback", "Trainer", "Config"))}
    names |= set(configuration_auto.CONFIG_MAPPING_NAMES.values())
    for key, mapping in vars(modeling_auto).items():
        if key.endswith("_MAPPING_NAMES"):
            names |= {name for name in mapping.values() if isinstance(name, str)}
    names = {name for name in names if not name.startswith("Auto") or name.startswith("Autoformer")}
    assert len(names) > 500
    refused = {name for name in names if not Policy().verdict(f"transformers:{name}").allowed}
    assert refused == set()


def test_internals_of_our_packages_are_not_open():
    for name in (
        "forgather_mem.callbacks.trainer.link:Link",
        "forgather_mem.callbacks:Path",
        "forgather_mem.sinks:importlib",
    ):
        with pytest.raises(TemplateError):
            Policy().load(use(name))


def guard(policy, name, kwargs):
    """Look at the arguments of a call as a construction does, without importing what it names."""
    graph = ConfigEnvironment(policy=policy).load_from_string(f"a: !call:{name} []").graph
    callee = Callee(dict, is_guarded=policy.guards(name))
    resolver = Resolver(graph, policy, {})
    resolver.guard(graph.target("a"), callee, [], kwargs, ArgumentCheck(resolver.allows_address))


def test_a_class_of_transformers_takes_no_argument_that_leads_to_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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


def test_a_folder_that_is_called_like_an_open_package_is_not_imported(tmp_path):
    package = tmp_path / "forgather" / "ml"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "tb_logger.py").write_text("open('ran', 'w')\nclass TBLogger: pass")
    code = """
        import sys
        sys.path.insert(0, "")
        from forgather_mem.config.source.location import SourceLocation
        from forgather_mem.config.policy.policy import NameUse, Policy
        from forgather_mem.errors import TemplateError
        use = NameUse("forgather.ml.tb_logger:TBLogger", SourceLocation("t.yaml", 1), "$")
        try:
            print(Policy().load(use).__module__)
        except TemplateError as error:
            print(error)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(allowlist.__file__).parents[3])},
    )  # fmt: skip
    assert not (tmp_path / "ran").exists()
    assert "forgather_mem.callbacks" in out.stdout


# everything


def test_unsafe_any_opens_everything_and_warns_once_per_process():
    code = """
        import warnings
        from forgather_mem.config.source.location import SourceLocation
        from forgather_mem.config.policy.policy import NameUse, Policy
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for name in ("os:getcwd", "json:decoder.JSONDecoder", "os:_exit"):
                Policy.UNSAFE_ANY.load(NameUse(name, SourceLocation("t.yaml", 1), "$"))
        print(len(caught), "UNSAFE_ANY" in str(caught[0].message))
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout == "1 True\n"


def test_a_policy_of_ones_own_does_not_become_unsafe():
    assert Policy.UNSAFE_ANY.is_unsafe
    assert not Policy().is_unsafe
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Policy().verdict("os:system").allowed
