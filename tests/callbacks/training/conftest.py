"""What fails in our callbacks fails their tests."""

import pytest


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGATHER_MEM_STRICT", "1")
