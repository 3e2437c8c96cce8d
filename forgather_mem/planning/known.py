"""The plans that were made in this process, by trainer."""

from __future__ import annotations

import weakref
from typing import Any

from forgather_mem.planning.result import Plan


class KnownPlans:
    """Remembers the plan of each trainer as long as that is alive. A plan of other arguments is not remembered."""

    def __init__(self) -> None:
        self._plans: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()

    def keep(self, trainer: Any, plan: Plan) -> None:
        """This is the plan of this trainer."""
        self._plans[trainer] = plan

    def of(self, trainer: Any) -> Plan | None:
        """The last plan of this trainer."""
        return self._plans.get(trainer)


# One, because a report is made far from where somebody has planned
PLANS = KnownPlans()
