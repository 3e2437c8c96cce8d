"""Where the demo can't begin; that it finds its leak is in `tests/test_installed.py`."""

from pathlib import Path

import pytest


def test_a_file_in_the_place_of_its_folder_is_named(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").touch()
    code, _, told = cli("demo")
    assert (code, told) == (1, "forgather-mem: demo: there is no place for its files: [Errno 17] File exists: 'out'\n")
