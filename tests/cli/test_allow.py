"""`forgather-mem allow`: opens what a template needs, once somebody has said yes."""

import io
import os
import sys

import pytest

from forgather_mem.config.policy.allow_entries import entries_of_folder
from tests.cli.commands import PLAIN, findings, in_a_process


@pytest.fixture
def here(here):
    (here / "train.yaml").write_text(PLAIN)
    return here


def test_allow_lists_asks_and_writes_nothing_without_a_yes(cli, here, monkeypatch):
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        code, out, _ = cli("allow", "train.yaml")
        assert code == 1
        assert "my_own.callbacks:Mine" in out
        assert "train.yaml:5:7" in out
        assert not (here / "pyproject.toml").exists()
    assert not (here / "imported").exists()


def test_allow_writes_what_opens_exactly_these(cli, here):
    (here / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    done = in_a_process("allow", "train.yaml", cwd=here, input="y\n")
    assert done.returncode == 0
    assert entries_of_folder(here) == ["my_own"]
    assert (here / "pyproject.toml").read_text().startswith("[project]\nname = 'mine'\n")
    assert cli("allow", "train.yaml") == (0, "train.yaml: the policy refuses none of its names\n", "")
    assert cli("check", "train.yaml", "--set", "metric=x")[0] == 0


def test_allow_opens_a_re_export_by_its_exact_name(cli, here):
    (here / "t.yaml").write_text("a: !call:my_own.callbacks:JSONDecoder []\nb: !call:getattr [x, y]\n")
    (here / "my_own" / "callbacks.py").write_text("from json import JSONDecoder\n")
    assert cli("allow", "t.yaml", "--yes")[0] == 0
    assert entries_of_folder(here) == ["my_own", "getattr"]
    assert cli("allow", "t.yaml", "--yes")[0] == 0
    assert entries_of_folder(here) == ["my_own.callbacks:JSONDecoder", "my_own", "getattr"]
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
