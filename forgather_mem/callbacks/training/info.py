"""`InfoCallback`: shows, before the first step, what is about to be trained."""

from __future__ import annotations

from collections.abc import Mapping

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.training.facts import Facts, arguments, training_facts
from forgather_mem.errors import check_flags
from forgather_mem.telemetry.records import NOTHING, Moment, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent

# Arguments that nobody has set carry no information.
_UNSET: tuple[object, ...] = (None, "", (), [], {})


class InfoCallback(RuleCallback):
    """Shows what will be trained: parameters, minimum memory, settings, data and devices; on stderr, rank 0 only.

    Args:
        verbose: Also all of the trainer's arguments that are set, the model's layers, the optimizer and the scheduler.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a `verbose` that is not true or false.
    """

    def __init__(self, verbose: bool = False, *, enabled: bool = True, strict: bool = False) -> None:
        check_flags("InfoCallback", verbose=verbose)
        self._teller = _Teller(verbose)
        super().__init__([Rule(AtEvent("train_begin"), [self._teller], "InfoCallback")], enabled=enabled, strict=strict)

    @property
    def facts(self) -> dict[str, Facts]:
        """The facts shown for the last training, by section and name."""
        return self._teller.facts


class _Teller:
    """The work: collects and prints the facts."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose
        self.facts: dict[str, Facts] = {}

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.is_main:
            self.facts = training_facts(moment)
            if self._verbose:
                self.facts |= _everything(moment)
            moment.run.print_line(_lines(self.facts))
        return NOTHING


def _everything(moment: Moment) -> dict[str, Facts]:
    set_ones = {name: value for name, value in arguments(moment.args).items() if value not in _UNSET}
    parts = {name: _shown(moment.objects.get(name)) for name in ("model", "optimizer", "lr_scheduler")}
    tokenizer = moment.objects.get("processing_class")
    return {
        "arguments": {name: str(value) for name, value in set_ones.items()},
        "parts": {name: text for name, text in {**parts, "processing_class": _shown(tokenizer)}.items() if text},
    }


def _shown(part: object) -> str:
    if part is None:
        return ""
    text = str(part)
    return type(part).__name__ if text.startswith("<") else text


def _lines(sections: Mapping[str, Facts]) -> str:
    """A block of lines for a terminal: one paragraph per section, names in one column."""
    width = max(len(name) for facts in sections.values() for name in facts if len(name) < 28)
    lines = ["forgather-mem: training starts"]
    for title, facts in sections.items():
        lines.append(f"  {title}")
        for name, value in facts.items():
            head, *more = value.splitlines() or [""]
            lines.append(f"    {name:<{width}}  {head}")
            lines += [f"    {'':<{width}}  {line}" for line in more]
    return "\n".join(lines)
