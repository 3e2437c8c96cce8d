"""When enough of a loop is planned, whatever the accumulation and however many optimizers there are."""

from __future__ import annotations

from collections.abc import Iterable

from torch.optim import Optimizer

from forgather_mem.planning.pretending import tensors_among
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.units import format_bytes

STEPS = 2  # the first has no state of the optimizer yet
MOST_BATCHES = 64
NOT_THROUGH = "Not in the plan is what comes after"


class Rounds:
    """Counts the steps of optimizers: each has to step, and after that a whole round has to be through.

    One whose state has grown has to step again: that of LBFGS grows until its history is full. So it is with what is
    kept from batch to batch, as a queue of features.

    Args:
        log: Knows what is kept.
        optimizers: Those that are to step, at least; others are added when they do.
        most_batches: After so many it is enough.
    """

    def __init__(self, log: StorageLog, optimizers: Iterable[Optimizer] = (), most_batches: int = MOST_BATCHES) -> None:
        # By what a wrapper, such as accelerate's, has in common with the optimizer in it
        self._optimizers = {id(one.param_groups): one for one in optimizers}
        self._state_bytes: dict[int, int] = {}
        self._wait_for = set(self._optimizers)
        self._log, self._kept_bytes, self._grown_bytes = log, 0, 0
        self._batches, self._most = 0, most_batches

    def stepped(self, optimizer: Optimizer) -> None:
        """It has."""
        key = id(optimizer.param_groups)
        self._optimizers.setdefault(key, optimizer)
        state = tensors_among(list(optimizer.state.values()))
        before, self._state_bytes[key] = self._state_bytes.get(key, -1), sum(tensor.nbytes for tensor in state)
        if self._state_bytes[key] > before:
            self._wait_for = set(self._optimizers)
        else:
            self._wait_for.discard(key)

    @property
    def step(self) -> int:
        """1 until each optimizer has stepped, or without one a batch is through, then 2."""
        has_stepped = self._optimizers.keys() <= self._state_bytes.keys() if self._optimizers else self._batches > 1
        return 2 if has_stepped else 1

    def go_on(self) -> bool:
        """Whether another batch is to be planned; asked before each, where the one before it is through."""
        self._batches += 1
        kept_bytes = self._log.alive_bytes()
        self._grown_bytes = kept_bytes - self._kept_bytes
        self._kept_bytes = max(self._kept_bytes, kept_bytes)
        is_little = 1000 * self._grown_bytes <= kept_bytes  # losses in a list
        is_through = (self._optimizers or self._batches > STEPS) and not self._wait_for and is_little
        return not is_through and self._batches <= self._most

    def notes(self) -> list[str]:
        """What has not come to an end."""
        if self._batches <= self._most:
            return []
        missing = dict.fromkeys(
            f"{type(one).__name__} has not stepped" if key not in self._state_bytes else f"{type(one).__name__} grows"
            for key, one in self._optimizers.items()
            if key in self._wait_for
        )
        grows = f"each keeps {format_bytes(self._grown_bytes)} more" if self._grown_bytes > 0 else ""
        why = ", ".join(missing) or grows
        return [f"{NOT_THROUGH} {self._most} batches: {why}."]
