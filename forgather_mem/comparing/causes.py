"""Settings that differ between two sides, and the parts of memory that each decides about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from forgather_mem.comparing.side import HELD, LEAK, OTHERS, WORKERS, Side
from forgather_mem.telemetry.report import RunReport

_ABOUT_BATCHES = ("arguments.per_device_train_batch_size", "batch.", "arguments.max_length", "arguments.max_seq_length")
_ABOUT_ATTENTION = ("model.attn_implementation", "forward.attention")
_ABOUT_WORKERS = ("arguments.dataloader_", "loader.")
_ABOUT_GARBAGE = ("calls.gc.collect", "actions.collect", "collector")
# Settings that decide how large a part is, most likely first
_CAUSES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "parameters": ("model.dtype", "model.parameters", "model."),
    "gradients": ("model.trained_parameters", "model.dtype", "model.parameters", "arguments.fsdp"),
    "optimizer": ("model.trained_parameters", "model.dtype", "optimizer", "arguments.optim"),
    "activations": (
        *_ABOUT_ATTENTION, "arguments.gradient_checkpointing", "arguments.activation_checkpointing",
        "model.gradient_checkpointing", *_ABOUT_BATCHES, "model.dtype", "arguments.bf16", "arguments.fp16",
        "forward.dtypes", "arguments.torch_compile", "arguments.gradient_accumulation_steps",
        "arguments.accumulate_grad_batches", "trainer.compute_loss", "model.",
    ),
    OTHERS: ("other_models",),
    WORKERS: _ABOUT_WORKERS,
    LEAK: (*_ABOUT_GARBAGE, "callback."),
    "batch": _ABOUT_BATCHES,
    "temporaries": (*_ABOUT_ATTENTION, *_ABOUT_BATCHES, "optimizer", "arguments.optim", "model."),
    "results": (
        "trainer.compute_metrics", "arguments.prediction_", "trainer.preprocess_logits", "arguments.eval_",
        "arguments.per_device_eval", "arguments.batch_eval",
    ),
    HELD: (*_ABOUT_GARBAGE, "other_models", "actions.", "calls.", "callback.", *_ABOUT_WORKERS),
    "cached": ("actions.clear", "calls.", "environment.PYTORCH", "arguments.torch_empty_cache_steps"),
})  # fmt: skip
_OF_SIZES = *_ABOUT_BATCHES, "model.parameters", "model.trained_parameters"
_OFF = (None, "False", "no", "0", "0.0")
# Who has none of a kind has no such thing, as a plain loop has no arguments; of others None is their default
_KINDS = (
    "arguments", "model", "optimizer", "forward", "loader", "trainer", "callback", "collector", "other_models",
)  # fmt: skip
_LOADER = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
# What comes of others, or is another name of the same: no cause beside them
_FOLLOWS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "arguments.activation_checkpointing": ("arguments.gradient_checkpointing",),
    "model.gradient_checkpointing": ("arguments.gradient_checkpointing", "arguments.activation_checkpointing"),
    "forward.attention": ("model.attn_implementation",),
    "forward.dtypes": ("model.dtype", "arguments.bf16", "arguments.fp16"),
    "other_models.bytes": ("other_models",),
    "batch.rows": ("arguments.per_device_train_batch_size",),
    "batch.sizes": ("arguments.per_device_train_batch_size", "batch.rows", "batch.length"),
    **{f"loader.{name}": (f"arguments.dataloader_{name}",) for name in _LOADER},
})  # fmt: skip


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
    """Those of a run, and which of our own actions, and of others' clean-up calls, ran in it."""
    calls = Counter({row.what: row.calls for row in report.cleanup_calls if row.whose != "us"})
    return {
        **report.run.settings,
        **{f"actions.{row.what}": "on" for row in report.ledger if row.calls},
        **{f"calls.{what}": "on" for what, number in calls.items() if number > 1},
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[Changed]:
    """What differs of these; of a side that has told of its batches alone, or of nothing, only what both have."""
    if any(all(name.startswith("batch.") for name in told) for told in (before, after)):
        before, after = ({key: told[key] for key in told if key in before and key in after} for told in (before, after))
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
    if name == "model.gradient_checkpointing":  # it is told where it is on
        return True
    if kind == "model" and before.get("model.class") != after.get("model.class"):
        return False
    return kind not in _KINDS or all(any(one.partition(".")[0] == kind for one in told) for told in (before, after))


def causes_of(part: str, settings: Sequence[Changed], grown: float) -> list[Changed]:
    """Those that decide about a part, which has grown by so much, most likely first."""
    settings = [one for one in settings if one.comparable and not _is_against(one, grown)]
    found: list[Changed] = []
    for wanted in (*_CAUSES.get(part, ()), "environment.", "threads"):  # these may change any part
        found += [one for one in settings if one.name.startswith(wanted) and one not in found]
    return leading(found)


def _is_against(one: Changed, grown: float) -> bool:
    """Whether it is a number of rows, tokens or parameters that has not changed in the direction of the memory."""
    both = one.before or "", one.after or ""
    is_number = one.name.startswith(_OF_SIZES) and all(map(str.isdecimal, both))
    return is_number and (int(both[1]) > int(both[0])) != (grown > 0)


def leading(found: Sequence[Changed]) -> list[Changed]:
    """Without those that come of others among them, or are other names of the same."""
    names = {one.name for one in found}
    return [one for one in found if names.isdisjoint(_FOLLOWS.get(one.name, ()))]
