"""`MemoryAlert`: warns before memory runs out, and on request saves or stops in time."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.diagnose.alerts.alert import Alert
from forgather_mem.diagnose.alerts.planned import PlannedAhead
from forgather_mem.diagnose.alerts.watch import AlertWatch, ForetoldRelay
from forgather_mem.errors import check_flags
from forgather_mem.probes import probe_of
from forgather_mem.telemetry.metrics import METRICS, name_on_current
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import Above, AtEvent, Below, Every, Limit, check_period

__all__ = ["Alert", "MemoryAlert"]

ABOVE = {"host/limit_used_frac": "90%"}
BELOW = {"device/headroom_bytes": "1GiB"}
_COLLOQUIAL = {"gpu": "device", "gpu0": "device", "cuda": "device", "vram": "device", "cpu": "host", "ram": "host"}


class MemoryAlert(RuleCallback):
    """Warns ahead of an out-of-memory error: when a value crosses a limit, or when growing memory will soon be full.

    Each rise is reported once: as a line on the console, in the records as a finding of kind "alert", to a W&B or
    trackio run that is active in this process, and to your function. A value must move back by 5 % of its limit before
    it is reported again. The forecast is based on the growth over the last steps, if that was at least twice what is
    left; sawteeth, spikes and caches filling up do not count as growth.

    What would fail late is told early, once in a training: a Trainer's batch or evaluation that takes too much, by a
    plan made beside the training; another evaluation that keeps more than fits, after its first batches. `save` and
    `stop` don't act on these.

    With several processes, whichever rank is near its limit, rank 0 decides the step at which all of them save or stop:
    4 steps later. No rank waits for another.

    Args:
        above: Sample names and limits, as in `{"host/limit_used_frac": "90%"}`, which is the default. Names of the
            host, device, collector and worker probes are read here; others must be read by another callback. A limit
            on `device/...` holds for each device on which this process has memory.
        below: The same for values that must not fall below their limit. Default: `{"device/headroom_bytes": "1GiB"}`.
        full_within_steps: Warn when memory will be full within this many steps; None for never.
        every_steps: Check every Nth step.
        call: Your function, called with an `Alert` on the rank concerned.
        save: Ask the trainer for a checkpoint.
        stop: Ask the trainer to stop in an orderly way after this step.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    >>> MemoryAlert(above={"host/limit_used_frc": "90%"})
    Traceback (most recent call last):
    ...
    ValueError: MemoryAlert(above=...): there is no sample named 'host/limit_used_frc'; did you mean ...

    Raises:
        ValueError: for an unknown sample name, an invalid limit, nothing to watch, or a switch that is neither true nor
            false.
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
        limits = [
            *_limits("above", Above, ABOVE if above is None else above),
            *_limits("below", Below, BELOW if below is None else below),
        ]
        if not limits and full_within_steps is None:
            raise ValueError("MemoryAlert(above={}, below={}, full_within_steps=None): nothing is left to watch")
        probes = dict.fromkeys(map(probe_of, (limit.name for limit in limits)))
        watch, late = EachRun(AlertWatch, limits, full_within_steps, call, save, stop), EachRun(PlannedAhead)
        works = [*(probe() for probe in probes if probe is not None), watch]
        rules = [
            Rule(when=Every(steps=every_steps), do=[*works, late], name="MemoryAlert"),
            Rule(when=AtEvent("evaluate", "save"), do=works, name="MemoryAlert"),
            Rule(when=AtEvent("evaluate", "predict"), do=[late], name="MemoryAlert"),
        ]
        super().__init__(rules, [ForetoldRelay(call)], enabled=enabled, strict=strict)


def _limits(parameter: str, trigger: type[Above] | type[Below], limits: Mapping[str, float | str]) -> list[Limit]:
    owner = f"MemoryAlert({parameter}=...)"
    if not isinstance(limits, Mapping):
        raise ValueError(f"MemoryAlert({parameter}={limits!r}): give sample names and limits: {{name: limit}}")
    found = []
    for name, limit in limits.items():
        if not isinstance(name, str) or "/" not in name:
            raise ValueError(f"{owner}: {name!r} is no sample name; write one such as 'host/limit_used_frac'")
        try:
            _check_family(name)
            found.append(trigger(name, limit).limit)
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from error
    return found


def _check_family(name: str) -> None:
    """Refuse one of our names in a misspelt family, which would count as the user's own family."""
    family, _, rest = name_on_current(name).partition("/")
    for metric in METRICS:
        known, _, known_rest = metric.name.partition("/")
        if rest != known_rest or family == known:
            continue
        if _COLLOQUIAL.get(family.lower()) == known or difflib.get_close_matches(family.lower(), [known], cutoff=0.7):
            raise ValueError(f"there is no sample named {name!r}; did you mean {metric.name!r}?")
