"""Gradient norms of a model, in total and layer by layer, with one pass and one synchronisation of the device."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from forgather_mem.errors import did_you_mean

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
