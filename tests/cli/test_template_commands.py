"""The template commands as a person types them: what they print, where, and the exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forgather_mem.cli.app import COMMANDS, TEMPLATES, dispatch
from forgather_mem.cli.options import variables_of
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.allow_entries import entries_of_folder
from forgather_mem.config.source.search import library

TEMPLATE_COMMANDS = [name for name, panel in COMMANDS.items() if panel == TEMPLATES]

BASE = """\
# What all runs share
[head]
lr: {{ lr | default(1e-3) }}
[callbacks]
trainer_callbacks: &trainer_callbacks !list:@trainer_callbacks
    - !singleton:collections:OrderedDict [[[a, 1]]]
"""
TRAIN = """\
# A run
-- extends 'base.yaml'
[callbacks]
    == super()
    - !singleton:my_own.callbacks:Mine
        save_dir: out
        metric: !var metric
"""
MINE = """\
from json import JSONDecoder
open("imported", "w").close()
class Mine:
    def __init__(self, save_dir, metric=None):
        raise AssertionError("check builds nothing")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with templates and a module of the user's own, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORGATHER_MEM_ALLOW", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "train.yaml").write_text(TRAIN)
    (tmp_path / "my_own").mkdir()
    (tmp_path / "my_own" / "callbacks.py").write_text(MINE)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "my_own":
            del sys.modules[name]


@pytest.fixture
def cli(here, capsys):
    """Runs a command: exit code, what it printed, what it complained."""

    def run(*argv):
        code = dispatch([str(arg) for arg in argv])
        out = capsys.readouterr()
        assert "Traceback" not in out.err
        return code, out.out, out.err

    return run


def in_a_process(*argv, cwd=None, **kwargs):
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "COLUMNS": "80", "NO_COLOR": ""}
    del environment["NO_COLOR"]
    command = [sys.executable, "-m", "forgather_mem", *map(str, argv)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, **kwargs)


# help


@pytest.mark.parametrize("argv", [["--help"], ["pp", "--help"], ["check", "-h"], ["allow", "--help"], ["--version"]])
def test_help_loads_nothing_that_takes_time(argv, tmp_path):
    code = f"""
        import sys
        from forgather_mem.cli.app import dispatch
        code = dispatch({argv!r})
        slow = ("torch", "transformers", "yaml", "jinja2", "numpy", "tensorboard", "psutil", "accelerate")
        print(code, [name for name in slow if name in sys.modules])
    """
    root = str(Path(__file__).parents[2])
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert out.stdout.splitlines()[-1] == "0 []"


def test_help_has_two_groups(cli):
    code, out, _ = cli("--help")
    assert code == 0
    runs, templates = out.index("Runs"), out.index("Templates")
    assert runs < out.index(" demo ") < templates
    assert all(templates < out.index(f" {name} ", templates) for name in TEMPLATE_COMMANDS)


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in TEMPLATE_COMMANDS)])
def test_help_fits_into_80_columns(cli, argv):
    code, out, _ = cli(*argv)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_the_version_is_the_packages(cli):
    from forgather_mem import __version__

    assert cli("--version") == (0, f"{__version__}\n", "")


def test_the_module_and_the_command_are_one():
    done = in_a_process("ls", "--path")
    assert (done.returncode, done.stdout) == (0, f"{library()}\n")


# mistakes


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["chek", "x"], "did you mean 'check'?"),
        (["rendr", "x"], "did you mean 'render'?"),
        (["zzzzzz"], "forgather-mem --help"),
        (["pp"], "Missing argument 'TEMPLATE'"),
        (["pp", "base.yaml", "--sett", "a=1"], "--set"),
        (["graph", "base.yaml", "--format", "png"], "'tree', 'yaml'"),
        (["pp", "-p", "nowhere", "x"], "there is no folder 'nowhere'"),
        (["ls", "-p", "nowhere"], "there is no folder 'nowhere'"),
        (["pp", "base.yaml", "--set", "lr"], "KEY=VALUE"),
        (["pp", "base.yaml", "--set", "l-r=1"], "KEY=VALUE"),
        (["pp", "base.yaml", "--set", "=1"], "KEY=VALUE"),
        (["pp", "base.yaml", "--set", "a=[1"], "not plain YAML"),
        (["pp", "base.yaml", "--set", "a=!call:os:system [x]"], "tags mean nothing here"),
        (["pp", "base.yaml", "--set", "a=1", "--set", "a.b=1"], "plain value"),
        (["check", "base.yaml", "--allow", "os.*"], "no wild cards"),
        (["check", "base.yaml", "--allow", "a b"], "no namespace, name or file"),
        (["check", "base.yaml", "--allow-file", "mine.py"], "there is no file 'mine.py'"),
    ],
)
def test_wrong_usage_is_one_message_and_ends_with_2(cli, argv, said):
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert said in " ".join(re.sub("[│╭╮╰╯─]", " ", err).split())
    assert max(map(len, err.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {{ missing }}", "broken.yaml:1:"),
        ("a: [1", "broken.yaml:1:"),
        ("a: !singelton:x:y", "did you mean '!singleton'?"),
        ("-- extends 'bse.yaml'", "did you mean 'base.yaml'?"),
        ("-- extends 'base.yaml'\n[calbacks]\nx: 1", "did you mean 'callbacks'?"),
    ],
)
def test_a_broken_template_is_one_message_with_its_place_and_ends_with_1(cli, here, text, said):
    (here / "broken.yaml").write_text(text)
    for command in ("graph", "targets", "check"):
        code, out, err = cli(command, "broken.yaml")
        assert code == 1
        assert said in (out if command == "check" else err)


def test_a_template_that_is_not_there(cli):
    code, out, err = cli("pp", "trian.yaml")
    assert (code, out) == (1, "")
    assert err.startswith("forgather-mem: template 'trian.yaml' not found\n  did you mean 'train.yaml'?")


def test_an_unknown_target(cli):
    code, _, err = cli("graph", "base.yaml", "--target", "trainer_callback")
    assert code == 1
    assert "did you mean 'trainer_callbacks'?" in err


# showing


def test_pp_prints_the_rendered_text(cli):
    code, out, err = cli("pp", "train.yaml", "--set", "lr=2e-5")
    assert (code, err) == (0, "")
    text = ConfigEnvironment().preprocess("train.yaml", lr=2e-5)
    assert out == text.removesuffix("\n") + "\n"
    assert cli("render", "train.yaml", "--set", "lr=2e-5") == (code, out, err)


def test_pp_debug_shows_where_each_line_comes_from(cli):
    code, out, _ = cli("pp", "--debug", "train.yaml")
    assert code == 0
    origins = {line.partition("|")[2].strip(): line.partition("|")[0].strip() for line in out.splitlines()}
    assert origins["lr: 0.001"] == "base.yaml:3"
    assert origins["- !singleton:my_own.callbacks:Mine"] == "train.yaml:5"
    text = "\n".join(line.partition("| ")[2] for line in out.splitlines())
    assert text.split() == ConfigEnvironment().preprocess("train.yaml").split()


def test_pp_shows_values_of_several_lines_and_no_control_characters(cli, here):
    (here / "value.yaml").write_text("a: {{ value }}\nb: 2\n")
    value = '"one\\ntwo\\u001b[31m"'
    _, out, _ = cli("pp", "value.yaml", "--set", f"value={value}")
    assert out == "a: one\ntwo\\x1b[31m\nb: 2\n"
    _, out, _ = cli("pp", "--debug", "value.yaml", "--set", f"value={value}")
    assert [line.rstrip() for line in out.splitlines()] == [
        "value.yaml:1  | a: one", "              | two\\x1b[31m", "value.yaml:2  | b: 2",
    ]  # fmt: skip


def test_settings_are_yaml_values_under_dotted_keys():
    settings = ["a=1", "b=x", "c=[1, {d: ~}]", "e.f.g=1e-4", "e.f.h=on", "i=", "j=a=b", "k='1'"]
    expected = {"a": 1, "b": "x", "c": [1, {"d": None}], "e": {"f": {"g": 1e-4, "h": True}}, "i": None, "j": "a=b"}
    assert variables_of(settings) == {**expected, "k": "1"}


def test_a_template_may_be_a_file_anywhere(cli, here, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert cli("pp", here / "train.yaml")[0] == 0
    assert cli("pp", os.path.relpath(here / "train.yaml"))[0] == 0
    assert cli("pp", "train.yaml")[0] == 1
    assert cli("pp", "-p", here, "train.yaml")[0] == 0


def test_graph_as_a_tree(cli):
    code, out, _ = cli("graph", "train.yaml")
    assert code == 0
    assert out.splitlines()[:3] == [
        "lr: 0.001",
        "trainer_callbacks: !list @trainer_callbacks",
        "    [0]: !singleton:collections:OrderedDict",
    ]
    _, part, _ = cli("graph", "train.yaml", "-t", "lr")
    assert part == "lr: 0.001\n"


def test_graph_as_yaml_means_the_same(cli):
    code, out, _ = cli("graph", "train.yaml", "--format", "yaml")
    assert code == 0
    environment = ConfigEnvironment()
    assert environment.load_from_string(out).graph == environment.load("train.yaml").graph


def test_targets_with_their_places(cli):
    code, out, _ = cli("targets", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["lr", "0.001", "base.yaml:3"],
        ["trainer_callbacks", "!list", "@trainer_callbacks", "base.yaml:5"],
    ]


def test_trefs_is_a_tree_of_files(cli, here):
    code, out, _ = cli("trefs", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [["train.yaml", "train.yaml"], ["base.yaml", "base.yaml"]]
    assert out.splitlines()[1].startswith("    base.yaml")


def test_trefs_says_which_template_is_missing(cli, here):
    (here / "child.yaml").write_text('-- extends "bse.yaml"\n-- include "base.yaml"\n')
    code, out, err = cli("trefs", "child.yaml")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["child.yaml", "base.yaml"]
    assert "child.yaml:1:1: template 'bse.yaml' not found" in err


def test_ls_lists_templates_with_their_first_comment(cli):
    code, out, _ = cli("ls")
    assert code == 0
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
    assert lines["base.yaml"] == "What all runs share"
    assert lines["callbacks/memory.yaml"]
    assert cli("ls", "--path") == (0, f"{library()}\n", "")


@pytest.mark.parametrize("argv", [["pp", "train.yaml"], ["graph", "train.yaml"], ["targets", "train.yaml"], ["ls"]])
def test_a_terminal_gets_colours_and_a_pipe_gets_none(here, argv):
    plain = in_a_process(*argv, cwd=here)
    assert plain.returncode == 0
    assert "\x1b" not in plain.stdout
    leader, follower = pty.openpty()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-m", "forgather_mem", *argv], cwd=here, env=environment, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                shown += (piece := os.read(leader, 65536))
            except OSError:
                break
            if not piece:
                break
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[" in shown or argv[0] == "graph"
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert [line.rstrip() for line in text.rstrip().splitlines()] == [
        line.rstrip() for line in plain.stdout.rstrip().splitlines()
    ]


def test_a_reader_that_leaves_early_is_no_error_message(here):
    (here / "long.yaml").write_text("\n".join(f"k{i}: {i}" for i in range(50_000)))
    root = str(Path(__file__).parents[2])
    command = f"{sys.executable} -m forgather_mem pp long.yaml | head -1"
    done = subprocess.run(
        command, shell=True, cwd=here, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
    )
    assert done.stdout == "k0: 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


# check


def findings(cli, *argv):
    code, out, _ = cli("check", *argv, "--json")
    found = json.loads(out)
    assert found["ok"] == (code == 0)
    return code, [(finding["kind"], finding["line"], finding["message"]) for finding in found["findings"]], found


def test_check_names_each_mistake_and_imports_nothing_that_is_not_allowed(cli, here):
    code, found, raw = findings(cli, "train.yaml")
    assert code == 1
    assert [(kind, line) for kind, line, _ in found] == [("refused", 5), ("unbound", 7)]
    assert raw["findings"][0]["allow"] == ["my_own"]
    assert not (here / "imported").exists()
    _, out, _ = cli("check", "train.yaml")
    assert "--allow my_own" in out
    assert out.endswith("train.yaml: 2 findings\n")


def test_check_compares_arguments_of_what_is_allowed_and_builds_nothing(cli, here):
    assert findings(cli, "train.yaml", "--allow", "my_own", "--set", "metric=loss")[:2] == (0, [])
    assert (here / "imported").exists()
    (here / "train.yaml").write_text(TRAIN.replace("save_dir", "save_dirs"))
    code, found, raw = findings(cli, "train.yaml", "--allow", "my_own", "--set", "metric=loss")
    assert code == 1
    assert found == [("misfit", 6, "unknown argument 'save_dirs' of my_own.callbacks:Mine")]
    assert raw["findings"][0]["hint"] == "did you mean 'save_dir'?"


def test_check_says_that_nothing_is_wrong(cli):
    assert cli("check", "base.yaml") == (0, "base.yaml: no problems found\n", "")


@pytest.mark.parametrize("text", ["a: !var {name: metric, default: 1}", "a: !var pp_config", "a: {{ lr }}"])
def test_variables_with_a_value_are_bound(cli, here, text):
    (here / "t.yaml").write_text(text)
    settings = ["--set", "lr=1"] if "lr" in text else []
    assert findings(cli, "t.yaml", *settings)[:2] == (0, [])


def test_a_setting_that_no_template_uses_is_found(cli):
    code, found, raw = findings(cli, "base.yaml", "--set", "lrr=1")
    assert (code, found) == (1, [("unused", None, "no template uses the variable 'lrr'")])
    assert raw["findings"][0]["hint"] == "did you mean 'lr'?"
    assert findings(cli, "train.yaml", "--set", "lr=1", "--set", "metric=x", "--allow", "my_own")[0] == 0


def test_a_misspelt_part_of_a_setting_is_found(cli, here):
    (here / "t.yaml").write_text("a: {{ params.lr }}\nb: {{ params['decay'] }}\nc: {{ whole | toyaml }}\n")
    given = ["--set", "params.lr=1", "--set", "params.decay=1", "--set", "whole.beta=1", "--set", "params.notes=x"]
    assert findings(cli, "t.yaml", *given)[:2] == (0, [])
    code, found, raw = findings(cli, "t.yaml", *given, "--set", "params.decai=1")
    assert (code, found) == (1, [("unused", None, "no template uses the variable 'params.decai'")])
    assert raw["findings"][0]["hint"] == "did you mean 'decay'?"


def test_a_block_that_no_parent_has_is_found_and_told_once(cli, here):
    (here / "t.yaml").write_text("-- extends 'base.yaml'\n[quite_another]\n    x: 1\n")
    code, found, raw = findings(cli, "t.yaml")
    text = "no template that t.yaml extends has a block 'quite_another', so it is not rendered"
    assert (code, found) == (1, [("block", 2, text)])
    assert raw["findings"][0]["hint"] == "the blocks are: callbacks, head"
    code, printed, complained = cli("check", "t.yaml")
    assert code == 1
    assert printed.startswith(f"t.yaml:2:1: {text}\n   2 | [quite_another]\n")
    assert complained == ""


def test_a_redeclared_key_is_told_and_is_no_mistake(cli, here):
    (here / "again.yaml").write_text("a: 1\nb: 2\na: 3\n")
    code, found, _ = findings(cli, "again.yaml")
    assert (code, found) == (0, [("redeclared", 3, "'a' is redeclared, first at again.yaml:1:1; the last one counts")])
    assert cli("check", "again.yaml")[1].endswith("again.yaml: 1 note\n")


def test_a_module_that_is_not_there_is_found(cli, here):
    (here / "t.yaml").write_text("a: !call:my_owm.callbacks:Mine []\nb: !call:my_own.callbacks:Mien [x]\n")
    code, found, _ = findings(cli, "t.yaml", "--allow", "my_own", "--allow", "my_owm")
    assert code == 1
    assert [(kind, line) for kind, line, _ in found] == [("misfit", 1), ("misfit", 2)]


def test_each_place_where_a_person_may_open_names(cli, here, monkeypatch):
    bound = ["train.yaml", "--set", "metric=x"]
    assert findings(cli, *bound)[0] == 1
    assert findings(cli, *bound, "--allow", "my_own")[0] == 0
    assert findings(cli, *bound, "--allow", "my_own.callbacks:Mine")[0] == 0
    monkeypatch.setenv("FORGATHER_MEM_ALLOW", "other,my_own")
    assert findings(cli, *bound)[0] == 0
    monkeypatch.delenv("FORGATHER_MEM_ALLOW")
    (here / "pyproject.toml").write_text('[tool.forgather_mem]\nallow = ["my_own"]\n')
    assert findings(cli, *bound)[0] == 0
    (here / "pyproject.toml").unlink()
    (here / "train.yaml").write_text(TRAIN.replace("my_own.callbacks:Mine", "my_own/callbacks.py:Mine"))
    code, _, raw = findings(cli, *bound)
    assert (code, raw["findings"][0]["allow"]) == (1, ["my_own/callbacks.py"])
    assert findings(cli, *bound, "--allow-file", "my_own/callbacks.py")[0] == 0
    assert findings(cli, *bound, "--allow", "my_own/callbacks.py")[0] == 0


def test_a_broken_pyproject_is_named_where_it_matters_and_only_there(cli, here):
    (here / "pyproject.toml").write_text("[tool.forgather_mem\n")
    code, _, err = cli("check", "base.yaml")
    assert code == 2
    assert "pyproject.toml" in re.sub(r"[│\s]", "", err)
    assert cli("pp", "base.yaml")[0] == 0


# allow


def test_allow_lists_asks_and_writes_nothing_without_a_yes(here):
    for answer in ("n\n", "\n", ""):
        done = in_a_process("allow", "train.yaml", cwd=here, input=answer)
        assert done.returncode == 1
        assert "my_own.callbacks:Mine" in done.stdout
        assert "train.yaml:5:7" in done.stdout
        assert "Traceback" not in done.stderr
        assert not (here / "pyproject.toml").exists()
    assert not (here / "imported").exists()


def test_allow_writes_what_opens_exactly_these(here):
    (here / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    done = in_a_process("allow", "train.yaml", cwd=here, input="y\n")
    assert done.returncode == 0
    assert entries_of_folder(here) == ["my_own"]
    assert (here / "pyproject.toml").read_text().startswith("[project]\nname = 'mine'\n")
    again = in_a_process("allow", "train.yaml", cwd=here, input="")
    assert (again.returncode, again.stdout) == (0, "train.yaml: the policy refuses none of its names\n")
    assert in_a_process("check", "train.yaml", "--set", "metric=x", cwd=here).returncode == 0


def test_allow_opens_a_re_export_by_its_exact_name(cli, here):
    (here / "t.yaml").write_text("a: !call:my_own.callbacks:JSONDecoder []\nb: !call:getattr [x, y]\n")
    (here / "my_own" / "callbacks.py").write_text("from json import JSONDecoder\n")
    assert cli("allow", "t.yaml", "--yes")[0] == 0
    assert entries_of_folder(here) == ["my_own", "getattr"]
    assert cli("allow", "t.yaml", "--yes")[0] == 0
    assert entries_of_folder(here) == ["my_own", "getattr", "my_own.callbacks:JSONDecoder"]
    assert cli("allow", "t.yaml", "--yes")[1] == "t.yaml: the policy refuses none of its names\n"


def test_allow_can_not_open_what_is_no_name(cli, here):
    (here / "t.yaml").write_text("a: !call:os._exit [1]\nb: !call:a:b:c []\n")
    code, out, _ = cli("allow", "t.yaml", "--yes")
    assert code == 1
    assert out.count("can't be allowed") == 2
    assert not (here / "pyproject.toml").exists()


def test_allow_shows_and_writes_addresses_too(cli, here):
    (here / "t.yaml").write_text("a: !call:forgather_mem.sinks:TensorBoardSink { logging_dir: 's3://bucket/runs/1' }\n")
    code, found, _ = findings(cli, "t.yaml")
    assert (code, found[0][0]) == (1, "refused")
    assert findings(cli, "t.yaml", "--allow", "s3://bucket/runs")[0] == 0
    code, out, _ = cli("allow", "t.yaml", "--yes")
    assert code == 0
    assert "s3://bucket/" in out
    assert entries_of_folder(here) == ["s3://bucket/"]
    assert findings(cli, "t.yaml")[0] == 0
    assert cli("allow", "t.yaml", "--yes")[1] == "t.yaml: the policy refuses none of its names\n"


@pytest.mark.parametrize("command", [["check"], ["allow", "--yes"]])
def test_a_pyproject_that_is_no_file_is_not_waited_for(cli, here, command):
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)):
        make(here / "pyproject.toml")
        code, out, err = cli(command[0], "train.yaml", *command[1:])
        assert code == 1
        assert "my_own" in out + err
        if command[0] == "allow":
            assert "is not a regular file" in err or "is a link to /dev/zero" in err
        if (here / "pyproject.toml").is_dir():
            (here / "pyproject.toml").rmdir()
        else:
            (here / "pyproject.toml").unlink()


@pytest.mark.parametrize("command", [["check"], ["allow", "--yes"]])
def test_a_pyproject_nested_too_deeply_is_a_sentence(cli, here, command):
    text = "[tool.forgather_mem]\nallow = " + "[" * 100_000
    (here / "pyproject.toml").write_text(text)
    code, _, err = cli(command[0], "train.yaml", *command[1:])
    assert code == 2
    assert "nested too deeply" in err
    assert (here / "pyproject.toml").read_text() == text


def test_allow_writes_through_no_link_of_a_strangers_folder(cli, here, tmp_path_factory):
    victim = tmp_path_factory.mktemp("home") / "victim"
    victim.write_text("precious")
    (here / "pyproject.toml.new").symlink_to(victim)
    assert cli("allow", "train.yaml", "--yes")[0] == 0
    assert entries_of_folder(here) == ["my_own"]
    (here / "pyproject.toml").unlink()
    (here / "pyproject.toml").symlink_to(victim)
    code, _, err = cli("allow", "train.yaml", "--yes")
    assert code == 1
    assert "pyproject.toml is a link to" in " ".join(err.split())
    assert victim.read_text() == "precious"


def test_allow_says_what_to_write_where_it_can_not(cli, here):
    text = "[tool]\nforgather_mem = {allow = []}\n"
    (here / "pyproject.toml").write_text(text)
    code, _, err = cli("allow", "train.yaml", "--yes")
    assert code == 1
    assert 'write allow = ["my_own"]' in err
    assert (here / "pyproject.toml").read_text() == text
