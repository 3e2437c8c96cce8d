"""Which callback says by itself what leaks, with bytes, holder and line, and is silent when nothing does?"""

from __future__ import annotations

from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.diagnose.leak_watch import LeakWatch
from forgather_mem.plan import Rule
from forgather_mem.triggers import Every, check_period


class LeakDetector(RuleCallback):
    """Finds memory that grows step by step, and who holds it; changes nothing.

    Every few steps it reads what is allocated on the host, on the device and in the data workers. When the lower
    edge of one of these keeps rising it looks closer for some steps: which containers grow, who holds them, which
    line adds to them. What it finds is printed and stands in the report as `leak`.

    Args:
        every_steps: Read the sizes at every N-th step. A verdict needs 16 readings over 60 steps after the warm-up.
        look_closer: False leaves out the closer look: a leak is then reported without holder and line. It takes about
            0.04 s in all, and opens a `tracemalloc` window of 10 steps at most where the source does not tell the
            line. When nothing near grows, a second one looks farther (0.3 s) and follows the user's lines for 10 steps
            with `sys.settrace`, 0.1 s of its own time at most; not where a debugger or coverage does so already.
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
        if not isinstance(look_closer, bool):
            raise ValueError(f"LeakDetector(look_closer={look_closer!r}): look_closer is true or false")
        self.every_steps = every_steps
        rules = [Rule(when=Every(steps=every_steps), do=[LeakWatch(look_closer)], name="LeakDetector")]
        super().__init__(rules, enabled=enabled, strict=strict)
