"""The commands as a person types them: help, and one message for a mistake, with its exit code."""

import re

import pytest

from forgather_mem.cli.app import COMMANDS
from tests.programs import printed_by

TEMPLATE_COMMANDS = ["ls", "pp", "graph", "targets", "trefs", "check", "allow"]


# help


@pytest.mark.parametrize("argv", [["--help"], ["pp", "--help"], ["check", "-h"], ["allow", "--help"], ["--version"]])
def test_help_loads_nothing_that_takes_time(argv, tmp_path):
    code = f"""
        import sys
        from forgather_mem.cli.app import dispatch
        code = dispatch({argv!r})
        slow = ("torch", "transformers", "yaml", "jinja2", "numpy", "tensorboard", "psutil", "accelerate", "rich")
        print(code, [name for name in slow if name in sys.modules])
    """
    assert printed_by(code, folder=tmp_path).splitlines()[-1] == "0 []"


def test_help_says_in_a_line_what_each_command_does_runs_before_templates(cli):
    code, out, _ = cli("--help")
    assert code == 0
    lines = out[out.index("commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in lines if line] == list(COMMANDS)
    assert all(line.endswith(said) for line, said in zip(lines, COMMANDS.values(), strict=False))
    assert list(COMMANDS)[-len(TEMPLATE_COMMANDS) :] == TEMPLATE_COMMANDS


def test_the_version_is_the_packages(cli):
    from forgather_mem import __version__

    assert cli("--version") == (0, f"{__version__}\n", "")


# mistakes


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["chek", "x"], "did you mean 'check'?"), (["rendr", "x"], "did you mean 'render'?"),
        (["zzzzzz"], "forgather-mem --help"), (["pp"], "pp: the following arguments are required: TEMPLATE"),
        (["pp", "base.yaml", "--sett", "a=1"], "--set"),
        (["run", "--callbacks", "a.yaml", "x.py"], "did you mean '--template'?"),
        (["pp", "-p", "nowhere", "x"], "'nowhere': there is no such folder"),
        (["ls", "-p", "nowhere"], "'nowhere': there is no such"), (["pp", "base.yaml", "--set", "lr"], "KEY=VALUE"),
        (["pp", "base.yaml", "--set", "l-r=1"], "KEY=VALUE"), (["pp", "base.yaml", "--set", "=1"], "KEY=VALUE"),
        (["pp", "base.yaml", "--set", "a=[1"], "not plain YAML"),
        (["pp", "base.yaml", "--set", "a=!call:os:system [x]"], "tags mean nothing here"),
        (["pp", "base.yaml", "--set", "a=1", "--set", "a.b=1"], "plain value"),
        (["check", "base.yaml", "--allow", "os.*"], "no wild cards"),
        (["check", "base.yaml", "--allow", "a b"], "no namespace, name or file"),
        (["check", "base.yaml", "--allow-file", "mine.py"], "there is no file 'mine.py'"),
    ],
)  # fmt: skip
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
