"""`GradLogger`: logs how gradients flow through a model, and reports where they vanish or explode."""

from __future__ import annotations

import logging
import math
import re
import statistics
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.trainer.link import link_of
from forgather_mem.callbacks.training.facts import sharded_by
from forgather_mem.callbacks.training.output_paths import EventTarget
from forgather_mem.errors import did_you_mean
from forgather_mem.sinks import ConsoleSink
from forgather_mem.telemetry.records import NOTHING, Finding, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import Every, check_period

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """L2 norms of the gradients of one step.

    Attributes:
        total: Norm of all gradients as one vector.
        layers: Norms by layer, in the model's order; layers without a gradient are absent.
        tracked: Norms by the requested names, in the model's order.
    """

    total: float
    layers: Mapping[str, float]
    tracked: Mapping[str, float]


class GradientNorms:
    """Reads the norms of one model's gradients.

    A layer is everything below the first number in a parameter's name (`model.layers.0`), or else the module that the
    parameter belongs to (`lm_head`). Parameters are held weakly; nothing here keeps a model alive.

    Args:
        model: The model with the parameters.
        track: Names or patterns to list separately: see `tracked_name`.
        only, without: Regular expressions: parameters to list individually, and those to leave out.

    Attributes:
        unknown: Names in `track` that no parameter has, each with the closest layer as a hint.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        track: Sequence[str] | None = None,
        only: str | None = None,
        without: str | None = None,
    ) -> None:
        names = [name for name, _ in model.named_parameters()]
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        layer_names = [layer_name(name) for name in names]
        self._layers = list(dict.fromkeys(layer_names))
        number_of = {name: number for number, name in enumerate(self._layers)}
        self._layer_of = [number_of[name] for name in layer_names]
        found = [_tracked_names(name, layer_name(name), track, only, without) for name in names]
        self._tracked = list(dict.fromkeys(key for keys in found for _, key in keys))
        number_of = {name: number for number, name in enumerate(self._tracked)}
        self._tracked_of = [[number_of[key] for _, key in keys] for keys in found]
        matched = {asked for keys in found for asked, _ in keys}
        self.unknown = {asked: did_you_mean(asked, self._layers) for asked in track or () if asked not in matched}

    @property
    def stale(self) -> bool:
        """Whether a parameter has been replaced since."""
        return any(reference() is None for reference in self._parameters)

    @torch.no_grad()
    def read(self, scale: float = 1.0) -> Norms | None:
        """The current norms; None without gradients.

        Args:
            scale: The factor of the loss (a gradient scaler's): the norms are divided by it.
        """
        gradients, numbers = [], []
        for number, reference in enumerate(self._parameters):
            parameter = reference()
            gradient = parameter.grad if parameter is not None else None
            if gradient is not None:
                gradients.append(gradient.coalesce().values() if gradient.is_sparse else gradient)
                numbers.append(number)
        if not gradients:
            return None
        layers: dict[int, float] = {}
        tracked: dict[int, float] = {}
        total = 0.0
        for number, norm in zip(numbers, _norms(gradients), strict=True):
            square = (norm / scale) ** 2
            total += square
            layer = self._layer_of[number]
            layers[layer] = layers.get(layer, 0.0) + square
            for key in self._tracked_of[number]:
                tracked[key] = tracked.get(key, 0.0) + square
        return Norms(
            total=math.sqrt(total),
            layers={self._layers[layer]: math.sqrt(layers[layer]) for layer in sorted(layers)},
            tracked={self._tracked[key]: math.sqrt(tracked[key]) for key in sorted(tracked)},
        )


def layer_name(parameter: str) -> str:
    """The layer that a parameter belongs to.

    >>> layer_name("model.layers.10.mlp.up.weight"), layer_name("lm_head.weight"), layer_name("scale")
    ('model.layers.10', 'lm_head', 'scale')
    """
    parts = parameter.split(".")
    for end, part in enumerate(parts[:-1], 1):
        if part.isdigit():
            return ".".join(parts[:end])
    return ".".join(parts[:-1]) or parameter


def tracked_name(parameter: str, asked: str) -> str | None:
    """The part of a parameter's name up to the end of the requested name; None if that is not in it.

    Whole parts of the name are compared, so "layer.1" is not found in "layer.11".

    >>> tracked_name("bert.encoder.layer.1.output.bias", "layer.1")
    'bert.encoder.layer.1'
    >>> tracked_name("bert.encoder.layer.11.output.bias", "layer.1")
    """
    at = f".{parameter}.".find(f".{asked}.")
    return parameter[: at + len(asked)] if at >= 0 else None


def _tracked_names(
    name: str, layer: str, track: Sequence[str] | None, only: str | None, without: str | None
) -> list[tuple[str, str]]:
    """Pairs of (requested name, name of the curve) for one parameter."""
    if without is not None and re.search(without, name):
        return []
    if only is not None or without is not None:
        return [(name, name)] if only is None or re.search(only, name) else []
    if track is None:
        return [(layer, layer)]
    return [(asked, found) for asked in track if (found := tracked_name(name, asked)) is not None]


def _norms(gradients: list[torch.Tensor]) -> list[float]:
    """The norm of each gradient, on the host: one pass and one synchronisation per device and dtype."""
    norms = [0.0] * len(gradients)
    for (_, dtype), (columns, numbers) in _group_tensors_by_device_and_dtype([[*gradients]], with_indices=True).items():
        # In half precision the norm itself would have only three correct digits
        asked = {"dtype": torch.float32} if dtype in _HALF else {}
        column = [gradient for gradient in columns[0] if gradient is not None]
        found = torch.stack(torch._foreach_norm(column, 2, **asked)).tolist()
        for number, norm in zip(numbers, found, strict=True):
            norms[number] = norm
    return norms


logger = logging.getLogger(__name__)

# Length of a bar in the flow table, and the number of decades it covers.
_BAR_CHARS, _DECADES = 20, 6
# The table is written at every this many readings: TensorBoard keeps ten texts per tag.
_FLOW_EVERY = 10


class GradLogger(RuleCallback):
    """Logs gradient norms before clipping, in total and layer by layer, to TensorBoard.

    Tags: `grad_norm_total` (equal to the trainer's own `grad_norm`), `grad_norm_max`, `grad_norm_min` and
    `grad_norm_mean` over the layers, `grad_norm_clipped` (the total after clipping), `grad_norm_layer/<name>`, and
    for every tenth reading the text `grad_flow`, a table of the layers in the model's order. A layer whose gradients
    vanish or explode is also named on stderr. Logged steps cost one pass over the gradients and one device
    synchronisation; other steps cost nothing. Rank 0 only; with parameters sharded over ranks only the trainer's own
    total is known. Without a link to the trainer the norms are those that the optimizer receives.

    Args:
        summary_writer: A `SummaryWriter` to write through. Default: a file of our own in the run's TensorBoard folder.
        log_frequency: Log every N optimizer steps.
        track_layers: Parts of the model with a curve each: "layer.0" matches `bert.encoder.layer.0`, and "layers.0.mlp"
            its MLP. Default: every layer.
        vanishing: A layer whose norm stays below this fraction of the largest layer's is reported as vanishing.
        exploding: A layer whose norm is this many times its median is reported as exploding; so is a total this many
            times the value it is clipped to.
        pos_re: Regular expression: one curve per matching parameter, instead of layers.
        neg_re: Regular expression: no curves for matching parameters.
        log_steps: Another name for `log_frequency`.
        logging_dir: The folder for our own file, when it can't be found as for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for a period below 1, or if `track_layers` is not a list of names.
    """

    def __init__(
        self,
        summary_writer: object = None,
        log_frequency: int = 100,
        track_layers: Sequence[str] | None = None,
        *,
        vanishing: float = 1e-6,
        exploding: float = 100.0,
        pos_re: str | None = None,
        neg_re: str | None = None,
        log_steps: int | None = None,
        logging_dir: str | Path | None = None,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        if isinstance(track_layers, str) or not all(isinstance(name, str) and name for name in track_layers or ()):
            raise ValueError(
                f"GradLogger(track_layers={track_layers!r}): give a list of names, for example ['layer.0', 'lm_head']"
            )
        check_period("GradLogger", "log_frequency", "step", log_frequency)
        check_period("GradLogger", "log_steps", "step", log_steps)
        self.summary_writer = summary_writer
        self.log_frequency = log_steps or log_frequency
        self.track_layers = None if track_layers is None else tuple(track_layers)
        tracking, limits = (self.track_layers, pos_re, neg_re), (vanishing, exploding)
        watcher = EachRun(_Watcher, summary_writer, logging_dir, tracking, limits)
        events = ("step_begin", "pre_optimizer_step", "optimizer_step")
        rules = [Rule(Every(steps=self.log_frequency, at=event), [watcher], "GradLogger") for event in events]
        super().__init__(rules, [ConsoleSink()], enabled=enabled, strict=strict)


class _Watcher:
    """The work in one training: measures where gradients are clipped, otherwise before the optimizer's step."""

    def __init__(
        self,
        run: RunInfo,
        summary_writer: object,
        logging_dir: str | Path | None,
        tracking: tuple[Sequence[str] | None, str | None, str | None],
        limits: tuple[float, float],
    ) -> None:
        self._target = EventTarget(run, summary_writer, logging_dir)
        self._tracking = tracking
        self._limits = limits
        self._fence = run.fence
        self._due = self._has_warned = False
        self._num_readings = 0
        self._norms: Norms | None = None
        self._gradients: GradientNorms | None = None
        self._health: GradientHealth | None = None
        self._max_norm: float | None = None
        self._trainers_total: object = None
        link = link_of(run)
        self._linked = link is not None and link.around_clipping(self.clipping)  # the trainer's clipping goes that way

    def clipping(
        self, call: Callable[..., object], arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> object:
        """Replaces the trainer's gradient clipping, which is `call`."""
        if not self._due:
            return call(*arguments, **keywords)
        if self._norms is None:
            self._norms = self._fence.call("GradLogger", self._measure, _scale_of(call))
        self._max_norm = _max_norm_of(arguments, keywords) or self._max_norm
        self._trainers_total = call(*arguments, **keywords)
        return self._trainers_total

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if not moment.is_main:
            return NOTHING
        if moment.event == "step_begin":
            self._arm(moment)
        elif self._due and moment.event == "pre_optimizer_step":
            if self._norms is None and self._trainers_total is None:
                self._norms = self._measure()
                if self._linked:  # but the trainer has not clipped
                    self._max_norm = math.inf
                else:
                    self._warn_after_clipping(moment)
        elif self._due:
            self._write(moment)
        return NOTHING

    def _arm(self, moment: Moment) -> None:
        self._due, self._norms, self._max_norm, self._trainers_total = True, None, None, None
        if self._health is None:
            self._health = GradientHealth(*self._limits, may_overflow=bool(getattr(moment.args, "fp16", False)))
        model = moment.objects.get("model")
        if isinstance(model, torch.nn.Module) and (self._gradients is None or self._gradients.stale):
            self._look_at(model, moment)

    def _look_at(self, model: torch.nn.Module, moment: Moment) -> None:
        spread_by = sharded_by(model, moment.args)
        if spread_by is not None:
            self._due = self._linked
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "GradLogger: the parameters are spread over ranks (%s): only the trainer's own total is logged",
                    spread_by,
                )
            return
        self._gradients = GradientNorms(model, *self._tracking)
        for name, hint in self._gradients.unknown.items():
            logger.warning("GradLogger: no parameter is in %r%s", name, f"; {hint}" if hint else "")

    def _measure(self, scale: float = 1.0) -> Norms | None:
        return self._gradients.read(scale) if self._gradients is not None else None

    def _warn_after_clipping(self, moment: Moment) -> None:
        clips_at = getattr(moment.args, "max_grad_norm", None)
        if not self._has_warned and clips_at:
            self._has_warned = True
            logger.warning("GradLogger: no link to the trainer: norms are those after clipping to %s", clips_at)

    def _write(self, moment: Moment) -> None:
        self._due = False
        norms, self._norms = self._norms, None
        trainers_total, self._trainers_total = self._trainers_total, None
        if norms is None:
            total = _host_number(trainers_total)
            if total is not None:
                self._target.page(moment).scalars({"grad_norm_total": total}, moment.step)
            return
        page = self._target.page(moment)
        page.scalars(_scalars(norms, self._max_norm), moment.step)
        assert self._health is not None, "armed with it"
        findings = self._health.look(norms, self._max_norm, moment.step)
        for finding in findings:
            moment.run.emit(finding)
            page.text("grad_findings", finding.text, moment.step)
        if findings or self._num_readings % _FLOW_EVERY == 0:
            page.text("grad_flow", _flow(norms.layers), moment.step)
        self._num_readings += 1


def _scalars(norms: Norms, max_norm: float | None) -> dict[str, float]:
    layers = norms.layers.values()
    values = {
        "grad_norm_total": norms.total,
        "grad_norm_max": max(layers),
        "grad_norm_min": min(layers),
        "grad_norm_mean": sum(layers) / len(layers),
    }
    if max_norm is not None:  # like torch: never scaled up; infinite without clipping
        values["grad_norm_clipped"] = norms.total * min(1.0, max_norm / (norms.total + 1e-6))
    return values | {f"grad_norm_layer/{name}": norm for name, norm in norms.tracked.items()}


def _flow(layers: Mapping[str, float]) -> str:
    """The layers in the model's order, each with a bar on a logarithmic scale below the largest."""
    highest = max((norm for norm in layers.values() if math.isfinite(norm)), default=0.0)
    rows = [f"| {n} | {name} | {norm:.3g} | `{_bar(norm, highest)}` |" for n, (name, norm) in enumerate(layers.items())]
    head = f"| | layer | norm | {_DECADES} decades up to {highest:.3g} |\n|---|---|---|---|\n"
    return head + "\n".join(rows)


def _bar(norm: float, highest: float) -> str:
    if not math.isfinite(norm):
        return "!" * _BAR_CHARS
    share = 1 + math.log10(norm / highest) / _DECADES if norm and highest else 0.0
    return "#" * max(round(_BAR_CHARS * share), 0) or "."


def _max_norm_of(arguments: tuple[object, ...], keywords: Mapping[str, object]) -> float | None:
    """The maximum norm passed to a clipping method: its first number."""
    for value in (keywords.get("max_norm"), keywords.get("max_grad_norm"), *arguments):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _host_number(norm: Any) -> float | None:
    """A norm computed by the trainer; None if only all ranks together could read it."""
    if hasattr(norm, "placements"):
        if not all(placement.is_replicate() for placement in norm.placements):
            return None
        norm = norm.to_local()
    return None if norm is None else float(norm)


def _scale_of(call: object) -> float:
    """The factor of the loss: a trainer with a gradient scaler unscales the gradients while it clips."""
    owner = getattr(call, "__self__", None)
    scaler = getattr(getattr(owner, "accelerator", owner), "scaler", None)
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0


# One odd reading does not count: a layer that starts at zero (LoRA), an unlucky batch, a scaler finding its scale.
_IN_A_ROW = 3
_REMEMBERED, _ENOUGH = 20, 5


class GradientHealth:
    """Examines one reading after another, and reports each problem once until it is over.

    Args:
        vanishing: A layer vanishes below this fraction of the largest layer's norm.
        exploding: A layer explodes above this many times the median of its last 20 norms; all do if clipping reduces
            the total by this factor.
        may_overflow: Whether single infinite readings are normal, as with a gradient scaler.
    """

    def __init__(self, vanishing: float, exploding: float, *, may_overflow: bool) -> None:
        self._vanishing = vanishing
        self._exploding = exploding
        self._may_overflow = may_overflow
        self._history: dict[str, deque[float]] = {}
        self._in_a_row: dict[tuple[str, str], int] = {}

    def look(self, norms: Norms, max_norm: float | None, step: int) -> list[Finding]:
        """The new findings of this reading.

        Args:
            norms: The norms before clipping.
            max_norm: The value that the total is clipped to; None without clipping.
            step: The optimizer step it belongs to.
        """
        troubles = {(kind, layer): (text, patience) for kind, layer, text, patience in self._troubles(norms, max_norm)}
        self._in_a_row = {key: self._in_a_row.get(key, 0) + 1 for key in troubles}
        for layer, norm in norms.layers.items():
            if math.isfinite(norm):
                self._history.setdefault(layer, deque(maxlen=_REMEMBERED)).append(norm)
        return [
            Finding(kind="gradients", step=step, text=text, data={"what": kind, "layer": layer})
            for (kind, layer), (text, patience) in troubles.items()
            if self._in_a_row[kind, layer] == patience
        ]

    def _troubles(self, norms: Norms, max_norm: float | None) -> Iterator[tuple[str, str, str, int]]:
        broken = [layer for layer, norm in norms.layers.items() if not math.isfinite(norm)]
        if broken:
            yield self._broken(norms, broken)
            return
        largest = max(norms.layers, key=lambda layer: norms.layers[layer])
        highest = norms.layers[largest]
        for layer, norm in norms.layers.items():
            if norm < self._vanishing * highest:
                text = f"gradients vanish in {layer}: norm {norm:.3g}, in {largest} {highest:.3g}"
                yield "vanishing", layer, text, _IN_A_ROW
            past = self._history.get(layer, ())
            # Computing a median takes longer than reading the norm did, and is rarely needed.
            if len(past) >= _ENOUGH and norm > self._exploding * min(past):
                usual = statistics.median(past)
                if usual and norm > self._exploding * usual:
                    text = f"gradients explode in {layer}: norm {norm:.3g}, its median is {usual:.3g}"
                    yield "exploding", layer, text, 1
        if max_norm and norms.total > self._exploding * max_norm:
            text = f"gradients explode: norm {norms.total:.3g} is clipped to {max_norm:g}; most of it is in {largest}"
            yield "clipped", largest, text, _IN_A_ROW

    def _broken(self, norms: Norms, broken: list[str]) -> tuple[str, str, str, int]:
        patience = _IN_A_ROW if self._may_overflow else 1
        if len(broken) == len(norms.layers):
            text = "gradients are not finite in any layer: the loss or its gradient is not finite"
            return "not finite", "", text, patience
        last = broken[-1]  # the backward pass starts at the end
        more = f" and {len(broken) - 1} layers before it" if broken[1:] else ""
        return "not finite", last, f"gradients are not finite in {last}{more}", patience
