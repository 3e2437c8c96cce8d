"""What the settings of the probes have in common whose readings keep to a budget."""

from __future__ import annotations

from typing import ClassVar

from forgather_mem.telemetry.triggers import check_seconds, check_share


class Budgeted:
    """Base of such settings: a dataclass with `budget_frac`, and perhaps with periods called `...every_s`.

    Attributes:
        reading: The settings, so that works with equal ones read the same.
    """

    reading: ClassVar[object] = property(lambda settings: settings)

    def __post_init__(self) -> None:
        name, given = type(self).__name__, vars(self)
        check_seconds(name, **{setting: value for setting, value in given.items() if setting.endswith("every_s")})
        check_share(name, budget_frac=given["budget_frac"])
