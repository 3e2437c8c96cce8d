"""`GradLogger`: logs how gradients flow through a model, and reports where they vanish or explode."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.trainer.link import link_of
from forgather_mem.callbacks.trainer.method_patches import Arguments, Call, Keywords
from forgather_mem.callbacks.training.grad_norms import GradientHealth, GradientNorms, Norms
from forgather_mem.callbacks.training.info import is_sharded
from forgather_mem.callbacks.training.output_paths import EventTarget
from forgather_mem.sinks import ConsoleSink
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import Every, check_period

logger = logging.getLogger(__name__)

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
        tracking, limits = (track_layers and tuple(track_layers), pos_re, neg_re), (vanishing, exploding)
        watcher = EachRun(_Watcher, (summary_writer, logging_dir), tracking, limits)
        events = ("step_begin", "pre_optimizer_step", "optimizer_step")
        rules = [Rule(Every(steps=log_steps or log_frequency, at=event), [watcher], "GradLogger") for event in events]
        super().__init__(rules, [ConsoleSink()], enabled=enabled, strict=strict)


@dataclass(eq=False)
class _Watcher:
    """The work in one training: measures where gradients are clipped, otherwise before the optimizer's step."""

    run: RunInfo
    target: tuple[object, str | Path | None]
    tracking: tuple[Sequence[str] | None, str | None, str | None]
    limits: tuple[float, float]

    def __post_init__(self) -> None:
        self._target = EventTarget(self.run, *self.target)
        self._due = self._has_warned = False
        self._num_readings = 0
        self._norms: Norms | None = None
        self._gradients: GradientNorms | None = None
        self._health: GradientHealth | None = None
        self._max_norm: float | None = None
        self._trainers_total: object = None
        link = link_of(self.run)
        self._linked = link is not None and link.around_clipping(self.clipping)  # the trainer's clipping goes that way

    def clipping(self, call: Call, arguments: Arguments, keywords: Keywords) -> object:
        """Replaces the trainer's gradient clipping, which is `call`."""
        if not self._due:
            return call(*arguments, **keywords)
        if self._norms is None:
            self._norms = self.run.fence.call("GradLogger", self._measure, _scale_of(call))
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
                elif not self._has_warned and (clips_at := getattr(moment.args, "max_grad_norm", None)):
                    self._has_warned = True
                    logger.warning("GradLogger: no link to the trainer: norms are those after clipping to %s", clips_at)
        elif self._due:
            self._write(moment)
        return NOTHING

    def _arm(self, moment: Moment) -> None:
        self._due, self._norms, self._max_norm, self._trainers_total = True, None, None, None
        if self._health is None:
            self._health = GradientHealth(*self.limits, may_overflow=bool(getattr(moment.args, "fp16", False)))
        model = moment.objects.get("model")
        if isinstance(model, torch.nn.Module) and (self._gradients is None or self._gradients.stale):
            self._look_at(model, moment)

    def _look_at(self, model: torch.nn.Module, moment: Moment) -> None:
        if is_sharded(model, moment.args):
            self._due = self._linked
            if not self._has_warned:
                self._has_warned = True
                logger.warning("GradLogger: parameters are spread over ranks: only the trainer's own total is logged")
            return
        self._gradients = GradientNorms(model, *self.tracking)
        for name, hint in self._gradients.unknown.items():
            logger.warning("GradLogger: no parameter is in %r%s", name, f"; {hint}" if hint else "")

    def _measure(self, scale: float = 1.0) -> Norms | None:
        return self._gradients.read(scale) if self._gradients is not None else None

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
    """The layers in the model's order."""
    rows = [f"| {number} | {name} | {norm:.3g} |" for number, (name, norm) in enumerate(layers.items())]
    return "\n".join(["| | layer | norm |", "|---|---|---|", *rows])


def _max_norm_of(arguments: Arguments, keywords: Keywords) -> float | None:
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
