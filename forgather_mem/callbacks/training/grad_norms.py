"""The norms of a model's gradients, by layer, and what is odd about them: layers where they vanish or explode."""

from __future__ import annotations

import math
import re
import statistics
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from forgather_mem.errors import did_you_mean
from forgather_mem.telemetry.records import Finding


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
        self._layers = [layer_name(name) for name in names]
        found = [_tracked_names(name, layer_name(name), track, only, without) for name in names]
        self._tracked = [list(dict.fromkeys(key for _, key in keys)) for keys in found]
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
        layers: dict[str, float] = {}
        tracked: dict[str, float] = {}
        for number, norm in zip(numbers, _norms(gradients), strict=True):
            square = (norm / scale) ** 2
            layers[self._layers[number]] = layers.get(self._layers[number], 0.0) + square
            for key in self._tracked[number]:
                tracked[key] = tracked.get(key, 0.0) + square
        return Norms(
            total=math.sqrt(sum(layers.values())),
            layers={name: math.sqrt(square) for name, square in layers.items()},
            tracked={name: math.sqrt(square) for name, square in tracked.items()},
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
        asked = {"dtype": torch.float32} if dtype in (torch.float16, torch.bfloat16) else {}
        column = [gradient for gradient in columns[0] if gradient is not None]
        found = torch.stack(torch._foreach_norm(column, 2, **asked)).tolist()
        for number, norm in zip(numbers, found, strict=True):
            norms[number] = norm
    return norms


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
            layer = broken[-1]  # the backward pass starts at the end
            text = f"gradients are not finite in {layer}"
            if len(broken) == len(norms.layers):
                layer, text = "", "gradients are not finite in any layer: the loss or its gradient is not finite"
            yield "not finite", layer, text, _IN_A_ROW if self._may_overflow else 1
            return
        largest = max(norms.layers, key=lambda layer: norms.layers[layer])
        highest = norms.layers[largest]
        for layer, norm in norms.layers.items():
            if norm < self._vanishing * highest:
                text = f"gradients vanish in {layer}: norm {norm:.3g}, in {largest} {highest:.3g}"
                yield "vanishing", layer, text, _IN_A_ROW
            past = self._history.get(layer, ())
            usual = statistics.median(past) if len(past) >= _ENOUGH else 0.0
            if usual and norm > self._exploding * usual:
                text = f"gradients explode in {layer}: norm {norm:.3g}, its median is {usual:.3g}"
                yield "exploding", layer, text, 1
        if max_norm and norms.total > self._exploding * max_norm:
            text = f"gradients explode: norm {norms.total:.3g} is clipped to {max_norm:g}; most of it is in {largest}"
            yield "clipped", largest, text, _IN_A_ROW
