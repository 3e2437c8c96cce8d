"""When a rule is due: `Every`, `AtEvent`, `Above`, `Below`. The module is `forgather_mem.telemetry.triggers`."""

from forgather_mem.telemetry.triggers import *  # noqa: F403
