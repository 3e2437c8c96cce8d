"""Which callback warns before memory runs out, and saves or stops in time when asked to?"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.diagnose.alert_watch import Alert, AlertWatch, Line
from forgather_mem.errors import check_flags
from forgather_mem.metrics import METRICS, check_name
from forgather_mem.plan import Rule
from forgather_mem.probes import DeviceProbe, HostProbe, PythonProbe, WorkerProbe
from forgather_mem.triggers import AtEvent, Every, check_period, read_limit

__all__ = ["Alert", "MemoryAlert"]

ABOVE = {"host/limit_used_frac": "90%"}
BELOW = {"device/headroom_bytes": "1GiB"}
_COLLOQUIAL = {"gpu": "device", "gpu0": "device", "cuda": "device", "vram": "device", "cpu": "host", "ram": "host"}
_PROBES: Mapping[str, Callable[[], Any]] = {
    "host": HostProbe,
    "device": DeviceProbe,
    "gc": PythonProbe,
    "workers": WorkerProbe,
}


class MemoryAlert(RuleCallback):
    """Warns before the wall: when a value crosses a limit, or when a memory that grows will soon be full.

    Each rise is told once: as a line on the console, in the records as a finding of kind "alert", to a W&B or trackio
    run that is active in this process, and to your function. A value must go back by 5 % of its limit before it is
    told again. How soon memory is full is predicted from the growth of the last steps, when these brought at least
    twice as much as is left; sawteeth, spikes and caches that fill are no growth.

    With several processes rank 0 decides from which step on all of them save or stop, whichever of them is near its
    wall: 4 steps later. No rank waits for another.

    Args:
        above: Sample names and limits, as in `{"host/limit_used_frac": "90%"}`, which is the default. Names that our
            probes of host, device, collector and workers give are read here; others where another callback reads them.
        below: The same for values that must not fall under their limit. Default: `{"device/headroom_bytes": "1GiB"}`.
        full_within_steps: Warn when memory will be full within so many steps; None for never.
        every_steps: Look at every N-th step.
        call: Your function, called with an `Alert`; on the rank that has noticed it.
        save: Ask the trainer for a checkpoint.
        stop: Ask the trainer to stop, in order, after this step.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> MemoryAlert(above={"host/limit_used_frc": "90%"})
    Traceback (most recent call last):
    ...
    ValueError: MemoryAlert(above=...): there is no sample named 'host/limit_used_frc'; did you mean ...

    Raises:
        ValueError: for an unknown sample name, a limit that is none, nothing to watch, or a switch that is neither
            true nor false.
    """

    def __init__(
        self,
        above: Mapping[str, float | str] | None = None,
        below: Mapping[str, float | str] | None = None,
        full_within_steps: int | None = 200,
        *,
        every_steps: int = 1,
        call: Callable[[Alert], object] | None = None,
        save: bool = False,
        stop: bool = False,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        check_flags("MemoryAlert", save=save, stop=stop)
        check_period("MemoryAlert", "full_within_steps", "step", full_within_steps)
        check_period("MemoryAlert", "every_steps", "step", every_steps, needed=True)
        if call is not None and not callable(call):
            raise ValueError(f"MemoryAlert(call={call!r}): give a function that takes an Alert")
        lines = [
            *_lines("above", ABOVE if above is None else above),
            *_lines("below", BELOW if below is None else below),
        ]
        if not lines and full_within_steps is None:
            raise ValueError("MemoryAlert(above={}, below={}, full_within_steps=None): nothing is left to watch")
        families = {line.name.partition("/")[0] for line in lines}
        watch = AlertWatch(lines, full_within_steps, call, save, stop)
        works = [*(make() for family, make in _PROBES.items() if family in families), watch]
        rules = [
            Rule(when=Every(steps=every_steps), do=works, name="MemoryAlert"),
            Rule(when=AtEvent("evaluate", "save"), do=works, name="MemoryAlert"),
        ]
        super().__init__(rules, enabled=enabled, strict=strict)


def _lines(parameter: str, limits: Mapping[str, float | str]) -> list[Line]:
    owner = f"MemoryAlert({parameter}=...)"
    if not isinstance(limits, Mapping):
        raise ValueError(f"MemoryAlert({parameter}={limits!r}): give sample names and limits: {{name: limit}}")
    lines = []
    for name, limit in limits.items():
        if not isinstance(name, str) or "/" not in name:
            raise ValueError(f"{owner}: {name!r} is no sample name; write one such as 'host/limit_used_frac'")
        try:
            check_name(name)
            _check_family(name)
            lines.append(Line(name, read_limit(name, limit), parameter == "above"))
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from error
    return lines


def _check_family(name: str) -> None:
    """Refuses one of our names in a misspelt family, which would count as a family of the user's own."""
    family, _, rest = name.partition("/")
    for metric in METRICS:
        known, _, known_rest = metric.name.partition("/")
        if rest != known_rest or family == known:
            continue
        if _COLLOQUIAL.get(family.lower()) == known or difflib.get_close_matches(family.lower(), [known], cutoff=0.7):
            raise ValueError(f"there is no sample named {name!r}; did you mean {metric.name!r}?")
