"""The plans that were made in this process: a report is made far from where somebody has planned."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from forgather_mem.planning.result import Plan

# The last plan of each trainer alive; none of other arguments
PLANS: WeakKeyDictionary[Any, Plan] = WeakKeyDictionary()
