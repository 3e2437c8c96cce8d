"""A handful of the zoo; all of it is run by benchmarks/leaks.py and `make soak`."""

import json
import os
from pathlib import Path

import pytest

from tests.forked import Forked

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.fresh
def test_some_of_the_zoo_are_judged_right(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    names = ["hooks", "lru_bounded"]
    arguments = ["--json", str(out), "--jobs", "1", "--only", *names]
    code, _, said = Forked(ROOT / "benchmarks/leaks.py", arguments, ROOT, os.environ).wait()
    assert code == 0, said
    found = {(row["name"], row["kind"]): row["leak"] for row in json.loads(out.read_text())}
    assert {key: leak["verdict"] == "leak" for key, leak in found.items()} == {
        ("hooks", "leaking"): True,
        ("hooks", "twin"): False,
        ("lru_bounded", "innocent"): False,
    }
    assert found["hooks", "leaking"]["suspects"][0]["held_by"] == "Net.inner._forward_hooks"
