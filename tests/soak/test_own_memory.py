"""A training that has little left below a limit of its process is not killed by being watched."""

from __future__ import annotations

import pytest

from benchmarks import own_memory

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("kind", list(own_memory.LIMITED))
def test_a_training_goes_on_with_8_mib_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [own_memory.one("alone") for _ in range(3)]
    taken_mib = max(memory["itself"][own_memory.LIMITED[kind]] for memory in alone if memory is not None)
    monkeypatch.setenv(own_memory.LIMIT, f"{kind} {taken_mib + 8}")
    for way in ("alone", "attach", "callbacks/memory.yaml"):
        assert own_memory.one(way) is not None  # it raises SystemExit for a training that has failed
