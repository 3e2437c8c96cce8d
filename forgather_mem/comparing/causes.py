"""Settings that differ between two sides, and the parts of memory that each decides about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from forgather_mem.comparing.side import JOINED, WORKERS, Side
from forgather_mem.telemetry.report import RunReport

_ABOUT_BATCHES = ("arguments.per_device_train_batch_size", "batch.", "arguments.max_length", "arguments.max_seq_length")
_ABOUT_EVALUATIONS = ("arguments.per_device_eval", "arguments.eval_", "arguments.prediction_", "arguments.batch_eval")
# Settings that decide how large a part is, most likely first
_CAUSES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "parameters": ("model.dtype", "model.parameters", "model."),
    "gradients": ("model.trained_parameters", "model.dtype", "model.parameters", "arguments.fsdp"),
    "optimizer": ("optimizer", "arguments.optim", "model.trained_parameters", "model.dtype"),
    "activations": (
        "model.attn_implementation", "arguments.gradient_checkpointing", "arguments.activation_checkpointing",
        "model.gradient_checkpointing", *_ABOUT_BATCHES, "model.dtype", "arguments.bf16", "arguments.fp16",
        "arguments.torch_compile", "arguments.gradient_accumulation_steps",
        "arguments.accumulate_grad_batches", "model.",
    ),
    WORKERS: ("arguments.dataloader_",),
    "batch": _ABOUT_BATCHES,
    "temporaries": ("model.attn_implementation", *_ABOUT_BATCHES, "optimizer", "arguments.optim", "model."),
    "results": _ABOUT_EVALUATIONS,
    "evaluate": _ABOUT_EVALUATIONS,
    "save": ("arguments.save_", "arguments.load_best"),
    "other": ("actions.", "arguments.dataloader_"),
    JOINED: ("model.attn_implementation", *_ABOUT_BATCHES, "model."),
    "cached": ("actions.clear", "environment.PYTORCH", "arguments.torch_empty_cache_steps"),
})  # fmt: skip
# What else may change any part
_ANY = ("environment.", "threads")
_OFF = (None, "False", "no", "0", "0.0")
# So few that differ may be the cause of whatever differs, but for what a batch does not decide about
_FEW = 3
_NOT_OF_BATCHES = ("parameters", "gradients", "optimizer")
# Who has none of a kind has no such thing, as a plain loop has no arguments; of others None is their default
_KINDS = ("arguments", "model", "optimizer")
_SWITCH = "gradient_checkpointing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A setting or a version that differs.

    Attributes:
        before, after: Its value; None where one side does not have it.
        comparable: Whether both sides have it, or could have it: else it is no cause.
    """

    name: str
    before: str | None
    after: str | None
    comparable: bool = True


def settings_of_sides(*sides: Side) -> Iterator[dict[str, str]]:
    """Those of each side's runs; what differs between runs of one side is no cause, so it is left out."""
    told = [[_settings_of(report) for report in side.reports if report.run.settings] for side in sides]
    names = {name for runs in told for one in runs for name in one}
    varied = {name for name in names if any(len({one.get(name) for one in runs}) > 1 for runs in told)}
    for runs in told:
        yield {name: value for name, value in next(iter(runs), {}).items() if name not in varied}


def _settings_of(report: RunReport) -> dict[str, str]:
    """Those of a run, and which of our own actions ran in it."""
    return {**report.run.settings, **{f"actions.{row.what}": "on" for row in report.ledger if row.calls}}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[Changed]:
    """What differs of these; of a side that has told of its batches alone, or of nothing, only what both have."""
    if any(all(name.startswith("batch.") for name in told) for told in (before, after)):
        before, after = (
            {name: told[name] for name in told if name in before and name in after} for told in (before, after)
        )
    names = [*before, *(name for name in after if name not in before)]
    sides = [(name, before.get(name), after.get(name)) for name in names]
    return [
        Changed(name=name, before=old, after=new, comparable=None not in (old, new) or _could_have(name, before, after))
        for name, old, new in sides
        # Batches are seen on the way: who has told none has not been closed
        if old != new and not (old in _OFF and new in _OFF) and not (None in (old, new) and name.startswith("batch."))
    ]


def _could_have(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a setting that one side does not have could stand on both."""
    kind = name.partition(".")[0]
    if name == f"model.{_SWITCH}":  # it is told where it is on
        return True
    if kind == "model" and before.get("model.class") != after.get("model.class"):
        return False
    return kind not in _KINDS or all(any(one.partition(".")[0] == kind for one in told) for told in (before, after))


def causes_of(part: str, settings: Sequence[Changed]) -> list[Changed]:
    """Those that decide about a part, most likely first; of very few that differ all, where none is known to."""
    settings = [one for one in settings if one.comparable]
    found: list[Changed] = []
    for wanted in (*_CAUSES.get(part, ()), *_ANY):
        found += [one for one in settings if one.name.startswith(wanted) and one not in found]
    if not found and len(settings) <= _FEW:
        found = [one for one in settings if part not in _NOT_OF_BATCHES or not one.name.startswith("batch.")]
    again = [one for one in found if one.name.endswith("_checkpointing")][1:]  # one switch has up to three names
    return [one for one in found if one not in again]


def decides(part: str, setting: Changed) -> bool:
    """Whether a setting is known to decide about this part."""
    return setting.comparable and setting.name.startswith(_CAUSES.get(part, ()))
