"""What a running loop keeps, by its code."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from forgather_mem.diagnose.alerts.running_loop import bytes_in, kept_lists

PASSES = 4


@pytest.fixture
def looks(tmp_path: Path) -> Iterator[Any]:
    """Runs code in which `look(passes)` is called in a loop; what was found at the last call."""
    found: list[int] = []

    def look(passes: int, module: object = None) -> None:
        found[:] = [len(kept) for kept in kept_lists(module, passes)]

    def run(code: str) -> list[int]:
        found.clear()
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(code))
        module = ModuleType("script")
        module.__dict__.update(look=look, __file__=str(file))
        sys.modules["script"] = module
        exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
        return list(found)

    yield run
    sys.modules.pop("script", None)


LOOP = """
    import itertools
    def add(to, what): to.append(what)
    def evaluate(data, often=False):
        kept, shown = [], []
        with open(__file__):
            for batch in {data}:
                if often: print("constant")
                with open(__file__):
                    {line}
                {rest}
                look(batch)
    evaluate(range(1, 5))
"""


@pytest.mark.parametrize(
    ("data", "line", "rest"),
    [("data", "kept.append(batch)", "pass"), ("data", "kept.append([batch] * 2)", "shown = 3")],
)
def test_a_list_of_each_pass_is_found(looks: Any, data: str, line: str, rest: str) -> None:
    assert looks(LOOP.format(data=data, line=line, rest=rest)) == [PASSES]


@pytest.mark.parametrize(
    ("data", "line", "rest"),
    [
        ("data", "kept.append(batch)", "if batch > 99: kept.clear()"),
        ("data", "kept.append(batch)", "if batch > 99: break"),
        ("data", "kept.append(batch)", "if len(kept) > 99: pass"),
        ("data", "kept.append(batch if batch < 20 else 0)", "pass"),
        ("data", "kept.append(batch)", "kept = kept[-99:]"),
        ("data", "add(kept, batch)", "pass"),
        ("data", "if batch < 99: kept.append(batch)", "pass"),
        ("data", "kept.append(batch); kept.append(batch)", "pass"),
        ("itertools.islice(data, 9)", "kept.append(batch)", "pass"),
        ("zip(data, data)", "batch = batch[0]; kept.append(batch)", "pass"),
        ("data", "kept.append(batch)", "forget = lambda: kept.clear()"),
    ],
)
def test_what_may_become_shorter_or_end_is_not(looks: Any, data: str, line: str, rest: str) -> None:
    assert looks(LOOP.format(data=data, line=line, rest=rest)) == []


def test_a_variable_of_the_module_that_a_function_names_is_not(looks: Any) -> None:
    loop = "kept = []\nfor batch in range(1, 5):\n    kept.append(batch)\n    look(batch)\n"
    assert looks(loop) == [PASSES]
    assert looks("def flush(): kept.clear()\n" + loop) == []


STEPS = """
    class Module:
        def __init__(self): self.kept = []
        def validation_step(self, batch, index):
            {line}
            return batch
        def {other}(self): self.kept.clear()
    module = Module()
    for index in range(1, 5):
        module.validation_step(index, index)
        look(index, module)
"""


@pytest.mark.parametrize(
    ("line", "other", "found"),
    [
        ("self.kept.append(batch)", "on_validation_epoch_end", [PASSES]),
        ("self.kept.append(batch)", "on_validation_batch_end", []),
        ("self.kept.append(batch if index < 9 else 0)", "on_validation_epoch_end", []),
        ("self.kept.append(batch); len(self.kept)", "on_validation_epoch_end", []),
    ],
)
def test_of_a_lightning_module_what_it_keeps_for_its_epoch_is_found(
    looks: Any, line: str, other: str, found: list[int]
) -> None:
    assert looks(STEPS.format(line=line, other=other)) == found


def test_each_storage_counts_once_and_whole() -> None:
    tensor, array = torch.zeros(256), np.zeros(64)
    assert bytes_in([tensor[:1], {"same": [tensor, "text"]}, (array[:2], array)]) == 1024 + 512
