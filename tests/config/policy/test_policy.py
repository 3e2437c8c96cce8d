"""The policy: by text before any import, by definition site after it."""

import sys
import warnings
from pathlib import Path

import pytest

from forgather_mem.config.policy.allow_entries import entries_of_environment, entries_of_folder
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError
from tests.config.policy.uses import refusal, use
from tests.programs import printed_by

# the name alone


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
    assert printed_by(code) == "[]\n"


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


def test_an_exact_name_opens_a_re_export_and_nothing_beside_it(write):
    write(exports="from json import JSONDecoder, JSONEncoder")
    policy = Policy(allow=["exports:JSONDecoder"])
    assert policy.load(use("exports:JSONDecoder")).__name__ == "JSONDecoder"
    for name in ("exports:JSONEncoder", "exports:JSONDecoder.decode", "json:JSONDecoder"):
        assert not policy.verdict(name).allowed


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


def test_a_string_in_place_of_a_list_is_an_error():
    with pytest.raises(ValueError, match=r"allow=\['my_module'\]"):
        Policy(allow="my_module")


# files


def test_a_link_to_an_allowed_file_is_that_file_and_a_link_from_it_is_not(write, monkeypatch):
    folder = write(good="class A: pass", bad="class A: pass")
    monkeypatch.chdir(folder)
    (folder / "looks_good.py").symlink_to(folder / "bad.py")
    assert not Policy(allow_files=["good.py"]).verdict("looks_good.py:A").allowed
    assert Policy(allow_files=["looks_good.py"]).verdict("bad.py:A").allowed  # what it is now


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


def test_the_environment_opens_names(monkeypatch):
    monkeypatch.setenv("FORGATHER_MEM_ALLOW", " my_module , json:JSONDecoder ,")
    assert entries_of_environment() == ["my_module", "json:JSONDecoder"]
    assert Policy.of_person().verdict("my_module:X").allowed


# everything


def test_unsafe_any_opens_everything_and_warns_once_per_process():
    code = """
        import warnings
        from forgather_mem.config.source.rendered import SourceLocation
        from forgather_mem.config.policy.policy import NameUse, Policy
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for name in ("os:getcwd", "json:decoder.JSONDecoder", "os:_exit"):
                Policy.UNSAFE_ANY.load(NameUse(name, SourceLocation("t.yaml", 1).error))
        print(len(caught), "UNSAFE_ANY" in str(caught[0].message))
    """
    assert printed_by(code) == "1 True\n"


def test_a_policy_of_ones_own_does_not_become_unsafe():
    assert Policy.UNSAFE_ANY.is_unsafe
    assert not Policy().is_unsafe
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Policy().verdict("os:system").allowed
