"""The help of `forgather-mem run`."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.run_arguments import OPTIONS
from tests.launch.commands import RUN, run


def test_help_is_there(tmp_path: Path) -> None:
    result = run([*RUN, "--help"], tmp_path)
    assert result.code == 0
    assert "--max-peak" in result.out


def test_the_help_names_each_option_that_the_parent_reads(cli) -> None:
    code, out, _ = cli("run", "--help")
    assert code == 0
    text = " ".join(out.replace("│", " ").split())
    for name, option in OPTIONS.items():
        assert f" {name} " in text
        assert option.text in text
