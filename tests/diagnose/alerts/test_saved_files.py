"""Files of `torch.save` that a loop goes on to write. Real disks are in benchmarks/late_failures.py."""

import os
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from forgather_mem.diagnose.alerts.foretold import Foretold
from forgather_mem.diagnose.alerts.saved_files import SavedFiles

LOOP = """
    import os
    def train(data, place, save, look):
        for step, batch in enumerate(data, 1):
            if step % {every} == 0:
                save({{"weights": torch.zeros(2**10)}}, f"{name}")
                {rest}
            look(step)
"""


@pytest.fixture
def trains(tmp_path: Path) -> Iterator[Any]:
    """Runs a loop of 128 steps with a disk on which so many files still fit at each step; what is told."""
    saved = torch.save

    def run(fit: Callable[[int], float], every: int = 10, name: str = "{place}/{step}.pt", rest: str = "pass") -> Any:
        now, told = 0, list[Foretold]()
        code = textwrap.dedent(LOOP.format(every=every, name=name, rest=rest))
        (tmp_path / "script.py").write_text(code)
        module = types.ModuleType("script")
        module.__dict__["torch"] = torch
        exec(compile(code, str(tmp_path / "script.py"), "exec"), module.__dict__)
        files = SavedFiles(lambda _: int(fit(now) * 5500))

        def look(step: int) -> None:
            nonlocal now
            now = step
            told.extend(filter(None, [files.look()]))

        files.begin(lambda: now + 1)
        try:
            module.train(DataLoader(range(128)), tmp_path, torch.save, look)  # type: ignore[arg-type]
        finally:
            files.give_back()
        assert torch.save is saved
        return told

    yield run
    torch.save = saved


def test_the_file_that_will_not_fit_is_told_with_its_step(trains: Any) -> None:
    (found,) = trains(lambda step: 8.5 - step // 10)[:1]
    assert found.name == "checkpoint"
    assert found.at_step == 90
    assert "each 10 steps torch.save writes a new file of 5." in found.text
    assert found.left_bytes < found.needed_bytes


@pytest.mark.parametrize(
    "loop",
    [
        {"fit": lambda step: 20.0 - step // 10},  # all fit
        {"fit": lambda _: 0.5, "name": "{place}/last.pt"},
        {"fit": lambda _: 0.5, "name": "{place}/{step % 20}.pt"},  # two by turns
        {"fit": lambda _: 0.5, "rest": "if step == 100: os.remove(f'{place}/10.pt')"},
        {"fit": lambda _: 0.5, "every": 50},  # too few
        {"fit": lambda _: 0.5, "every": 40},  # the data ends before the next
        {"fit": lambda _: 0.5, "rest": "if step > 99: break"},
    ],
)
def test_of_others_nothing_is_told(trains: Any, loop: dict[str, Any]) -> None:
    assert trains(**loop) == []


def test_what_cannot_be_saved_is_the_callers_error(tmp_path: Path) -> None:
    files, saved = SavedFiles(), torch.save
    files.begin(lambda: 1)
    try:
        with pytest.raises((OSError, RuntimeError)) as error:
            torch.save({}, tmp_path / "none" / "x.pt")
    finally:
        files.give_back()
    assert all(os.path.basename(str(frame.path)) != "saved_files.py" for frame in error.traceback)
    assert torch.save is saved


def test_a_save_of_somebodys_own_may_write_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "save", lambda obj, f: "sent")
    files = SavedFiles(lambda _: 0)
    files.begin(lambda: 1)
    try:
        assert torch.save({}, "s3://bucket/model.pt") == "sent"
    finally:
        files.give_back()
