"""The scripts are run, not imported."""

import pytest

collect_ignore = [
    "scripts",
    "by_others",
    "by_strangers",
    "by_outsiders",
    "by_newcomers",
    "by_visitors",
    "by_travellers",
    "by_lines",
]


@pytest.fixture(autouse=True)
def started_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an import leaves uncollected is room for the allocation that is to fail."""
    monkeypatch.delenv("PYTHONPATH")
