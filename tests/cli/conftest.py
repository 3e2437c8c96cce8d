"""A folder with templates, and a command in it."""

import sys

import pytest

from forgather_mem.cli.app import dispatch
from tests.cli.commands import BASE, MINE, TRAIN


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
