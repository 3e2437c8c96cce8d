"""Detects vanishing and exploding gradients, layer by layer."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator

from forgather_mem.callbacks.training.grad_norms import Norms
from forgather_mem.telemetry.records import Finding

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
        text = f"gradients are not finite in {last}" + (
            f" and {len(broken) - 1} layers before it" if broken[1:] else ""
        )
        return "not finite", last, text, patience
