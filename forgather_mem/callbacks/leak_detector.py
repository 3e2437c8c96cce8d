"""`LeakDetector`: reports what leaks, with bytes, holder and line, and nothing else."""

from __future__ import annotations

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.diagnose.leaks.watch import LeakWatch
from forgather_mem.errors import check_flags
from forgather_mem.telemetry.records import OWN_BUDGET_FRAC
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import Every, check_period


class LeakDetector(RuleCallback):
    """Finds memory that grows step by step, and its holder; changes nothing.

    Every few steps it reads the allocated memory of the host, the device and the data workers. When the lower envelope
    of one of these keeps rising, it looks closer for some steps: which containers grow, who holds them, which line adds
    to them. The result is printed, and is in the report as `leak`.

    Args:
        every_steps: Read the sizes at every Nth step. A verdict needs 16 readings over 60 steps after the warm-up.
            If all our own code takes over 0.5 % of the time and nothing grows, there are fewer: at least one in each
            64th part of the steps so far.
        look_closer: False disables the closer look: a leak is then reported without holder and line. The look takes
            about 0.04 s in total. If nothing nearby grows, a second look goes further (0.3 s).
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> LeakDetector(every_steps=0)
    Traceback (most recent call last):
    ...
    ValueError: LeakDetector(every_steps=0): a period is 1 step or more

    Raises:
        ValueError: for a period below 1, or a switch that is neither true nor false.
    """

    def __init__(
        self, every_steps: int = 4, *, look_closer: bool = True, enabled: bool = True, strict: bool = False
    ) -> None:
        check_period("LeakDetector", "every_steps", "step", every_steps)
        check_flags("LeakDetector", look_closer=look_closer)
        watch, when = EachRun(LeakWatch, look_closer), Every(steps=every_steps)
        rules = [Rule(when=when, do=[watch], name="LeakDetector", budget_frac=OWN_BUDGET_FRAC)]
        super().__init__(rules, enabled=enabled, strict=strict)
