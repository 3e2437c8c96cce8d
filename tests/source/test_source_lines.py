"""The user's code is told from libraries' and from ours; which line adds to a holder is in `test_holder_kinds`."""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import forgather_mem
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.source.source_lines import (
    calling_place,
    failed_line,
    is_our_class,
    is_user_class,
    is_user_file,
    is_user_module,
    line_name,
    short_file,
    source_line,
    user_modules,
)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of a user, imported from a file."""
    (tmp_path / "mine_of_a_user.py").write_text("class Mine:\n    def keep(self):\n        return [1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mine_of_a_user  # type: ignore[import-not-found]

    yield mine_of_a_user
    del sys.modules["mine_of_a_user"]
    user_modules.cache_clear()  # it goes by their number, and of a later test there may be as many


def test_files_of_python_of_libraries_and_of_ours_are_not_the_users() -> None:
    for file in (
        os.__file__, torch.__file__, forgather_mem.__file__, json.__file__, "<frozen importlib._bootstrap>", "",
    ):  # fmt: skip
        assert not is_user_file(file), file
    for file in ("/home/me/train.py", "train.py", "/tmp/ipykernel_5/37.py", "<ipython-input-3>"):
        assert is_user_file(file), file


def test_a_module_and_a_class_are_the_users_by_their_file(mine: ModuleType) -> None:
    assert [is_user_module(module) for module in (mine, os, torch, forgather_mem, "no module")] == [True] + [False] * 4
    assert [is_user_class(cls) for cls in (mine.Mine, Path, torch.nn.Linear, MemoryCallback)] == [True] + [False] * 3
    assert [is_our_class(cls) for cls in (MemoryCallback, mine.Mine, torch.nn.Linear)] == [True, False, False]
    assert "mine_of_a_user" in user_modules(len(sys.modules))
    assert "json" not in user_modules(len(sys.modules))


def test_the_script_is_the_users_though_it_has_no_file() -> None:
    script = ModuleType("__main__")
    assert is_user_module(script)
    assert is_user_class(type("Mine", (), {"__module__": "__main__"}))


def test_where_the_user_wrote_a_function_is_told_and_where_a_library_did_is_not(mine: ModuleType) -> None:
    assert source_line(str(mine.__file__), 3) == "return [1]"
    assert source_line("/no/such/file.py", 3) == ""
    assert line_name("/home/me/train.py", 41) == "train.py:41"
    assert line_name(f"{sys.path[0]}/runs/../train.py", 41) == "train.py:41"


@dataclass
class At:
    place: tuple[str, int] | None = field(default_factory=calling_place)  # called by Python's own `__init__`


def test_the_calling_line_is_the_users_behind_those_of_libraries() -> None:
    frame = inspect.currentframe()
    assert At().place == (__file__, frame.f_lineno)


def test_the_line_of_an_error_is_the_innermost_of_the_users_own() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert failed_line(caught.value) == f"tests/source/test_source_lines.py:{caught.tb.tb_lineno}"
    assert failed_line(ValueError("never raised")) is None


def test_an_error_that_a_library_still_holds_came_through_the_line_that_called_it() -> None:
    library: dict[str, Any] = {"failed_line": failed_line}
    source = "def train(step):\n try: step('{')\n except ValueError as error: return failed_line(error)"
    exec(compile(source, "/x/site-packages/library.py", "exec"), library)
    told = library["train"](json.loads)
    assert told == f"tests/source/test_source_lines.py:{sys._getframe().f_lineno - 1}"


def test_a_link_to_a_script_is_told_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # where the script really is
    (runs := tmp_path / "runs").mkdir()
    monkeypatch.chdir(runs)
    assert short_file(str(runs / "train.py")) == "train.py"
