"""The scripts are run, not imported."""

import pytest

collect_ignore_glob = ["scripts", "by_*"]


@pytest.fixture(autouse=True)
def started_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an import leaves uncollected is room for the allocation that is to fail."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
