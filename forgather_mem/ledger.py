"""What did giving memory back cost, and what did it bring? Every collection, clear and trim is booked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What the actions return, by what they do: (seconds, bytes freed).
_BOOKED = {
    "collect": ("collect/time_s", "collect/freed_bytes"),
    "clear": ("cache/time_s", "cache/freed_bytes"),
    "trim": ("trim/time_s", "trim/freed_bytes"),
}


@dataclass(slots=True)
class Row:
    """One kind of action, summed over a run.

    Attributes:
        what: "collect", "clear" or "trim".
        calls: How often.
        time_s: Seconds inside the calls.
        next_step_excess_s: Seconds that the steps right after took longer than the usual step.
        freed_bytes: Given back by the calls.
        retaken_bytes: Of these, allocated again within a few steps.
    """

    what: str
    calls: int = 0
    time_s: float = 0.0
    next_step_excess_s: float = 0.0
    freed_bytes: int = 0
    retaken_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As the report's `ledger` has it."""
        return asdict(self)


class Ledger:
    """The rows of one run.

    >>> ledger = Ledger()
    >>> ledger.book("clear", {"cache/time_s": 0.002, "cache/freed_bytes": 1024.0})
    >>> ledger.book("clear", {"cache/time_s": 0.001, "cache/freed_bytes": 0.0})
    >>> row = ledger.rows()[0]
    >>> row.what, row.calls, row.freed_bytes, round(row.time_s, 3)
    ('clear', 2, 1024, 0.003)
    """

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def book(self, what: str, values: Mapping[str, float]) -> None:
        """Add one action that returned `values`."""
        time_name, freed_name = _BOOKED[what]
        row = self._rows.setdefault(what, Row(what))
        row.calls += 1
        row.time_s += values.get(time_name, 0.0)
        row.freed_bytes += int(values.get(freed_name, 0.0))

    def calls(self, what: str) -> int:
        """How often this has been done so far."""
        row = self._rows.get(what)
        return row.calls if row else 0

    def rows(self) -> list[Row]:
        """The rows booked so far, in the order of their first booking."""
        return list(self._rows.values())
