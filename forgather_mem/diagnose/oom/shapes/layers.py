"""How far a pass through a model had come, by the layer in which it failed."""

from __future__ import annotations

import math

_LEAST_DONE = 0.125
# Attributes that say how many numbers a layer makes of each token or pixel
_WIDTHS = ("out_features", "out_channels", "embedding_dim", "num_features", "num_channels", "hidden_size")


def part_done(model: object, layer: str | None) -> float | None:
    """The part of all activations that exists once this layer has run; None if it is no layer of the model.

    Layers are taken to run in the order in which they were made, once each, on as many tokens or pixels.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.ReLU(), torch.nn.Linear(30, 60))
    >>> part_done(net, "0 (Linear)"), part_done(net, "2 (Linear)"), part_done(net, "CrossEntropyLoss")
    (0.25, 1.0, None)

    Args:
        model: The model.
        layer: Its layer as in a report.
    """
    named = getattr(model, "named_modules", None)
    if layer is None or named is None:
        return None
    name, before, own, total = layer.partition(" (")[0], 0.0, 0.0, 0.0
    width, leaves = 1, 0
    for path, module in named():
        if next(module.children(), None) is not None:
            continue
        width = _width(module) or width
        total += width
        path = path.removeprefix("module.").removeprefix("_orig_mod.")
        if path == name or path.startswith(f"{name}."):
            own, leaves = own + width, leaves + 1
        elif not leaves:
            before += width
    if not leaves or not total:
        return None
    return max(_LEAST_DONE, (before + own / (1 if leaves == 1 else 2)) / total)


def _width(module: object) -> int | None:
    for name in _WIDTHS:
        if isinstance(width := getattr(module, name, None), int) and width > 0:
            return width
    shape = getattr(module, "normalized_shape", None)
    return math.prod(shape) if isinstance(shape, tuple) and shape else None
