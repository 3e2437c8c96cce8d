"""When enough of a loop is planned, whatever the accumulation and however many optimizers there are."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary, WeakSet

from torch.optim import Optimizer

from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.storage_log import StorageLog

_NOT_THROUGH = "Not in the plan is what comes after "
STEPS = 2  # the first has no state of the optimizer yet
MOST_BATCHES = 64


def not_through(what: str) -> Note:
    """What is to be said where nothing after this is planned."""
    return Note(f"{_NOT_THROUGH}{what}", "at least")


def where_it_ends(notes: Iterable[str]) -> str:
    """How what a plan shows begins where it ends too early; "" for one that is through.

    >>> where_it_ends(["A sentence.", not_through("79 steps.")])
    'the plan ends after 79 steps: until then '
    """
    ends = [note.removeprefix(_NOT_THROUGH)[:-1] for note in notes if note.startswith(_NOT_THROUGH)]
    return f"the plan ends after {ends[0]}: until then " if ends else ""


class Rounds:
    """Counts the steps of optimizers: each has to step, and after that a whole round has to be through.

    One whose state has grown has to step again: that of LBFGS grows until its history is full. So it is with what is
    kept from batch to batch, as a queue of features.

    Args:
        log: Knows what is kept.
        optimizers: Those that are to step, at least; others are added when they do.
        most: Of an evaluation the number of its batches: what is kept of each counts so often.
        host: Knows what is kept there.
    """

    def __init__(
        self, log: StorageLog, optimizers: Iterable[Optimizer] = (), most: int = 0, host: StorageLog | None = None
    ) -> None:
        # Of each the bytes of its state, -1 until it has stepped; nothing is kept by it
        self._state_bytes, self._wait_for = WeakKeyDictionary[Optimizer, int](), WeakSet[Optimizer]()
        self._logs, self._kept_bytes = [one for one in (log, host) if one is not None], 0
        self._batches, self._most, self._is_evaluation = 0, most or MOST_BATCHES, most > 0
        for optimizer in optimizers:
            self.add(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        """It is to step as well, unless it is one that is known, or a wrapper of that, such as accelerate's."""
        if self._known(optimizer) is None:
            self._state_bytes[optimizer] = -1
            self._wait_for.add(optimizer)

    def again(self) -> None:
        """A whole round is to come."""
        self._wait_for, self._batches = WeakSet(self._state_bytes), 0

    def stepped(self, optimizer: Optimizer) -> None:
        """It has."""
        self.add(optimizer)
        one = self._known(optimizer) or optimizer
        before, state = self._state_bytes[one], tensors_among(list(optimizer.state.values()))
        self._state_bytes[one] = sum(tensor.nbytes for tensor in state)
        if self._state_bytes[one] > before:
            self._wait_for = WeakSet(self._state_bytes)
        else:
            self._wait_for.discard(one)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that are to step."""
        return list(self._state_bytes)

    @property
    def step(self) -> int:
        """1 until each optimizer has stepped, or without one a batch is through, then 2."""
        has_stepped = min(self._state_bytes.values()) >= 0 if self._state_bytes else self._batches > 1
        return 2 if has_stepped else 1

    def go_on(self) -> bool:
        """Whether another batch is to be planned; asked before each, where the one before it is through."""
        self._batches += 1
        kept_bytes = sum(log.alive_bytes for log in self._logs)
        # Of an evaluation all that has been kept since the second batch, and what may come at that rate
        often = self._most / self._batches if self._is_evaluation else 1
        is_little = 1000 * often * (kept_bytes - self._kept_bytes) <= kept_bytes  # losses in a list
        if not self._is_evaluation or self._batches <= STEPS:
            self._kept_bytes = max(self._kept_bytes, kept_bytes)
        is_through = (self._state_bytes or self._batches > STEPS) and not self._wait_for and is_little
        return not is_through and self._batches <= self._most

    @property
    def repeats(self) -> bool:
        """Whether this batch is as those before it, and none of the last ones."""
        return STEPS < self._batches < self._most - STEPS

    def notes(self) -> list[Note]:
        """What has not come to an end."""
        if self._batches <= self._most:
            return []
        idle = dict.fromkeys(type(one).__name__ for one in self._wait_for if self._state_bytes[one] < 0)
        why = f": {', '.join(idle)} has not stepped" if idle else ", since each keeps more"
        return [not_through(f"{self._most:,} batches{why}.")]

    def _known(self, optimizer: Optimizer) -> Optimizer | None:
        return next((one for one in self._state_bytes if one.param_groups is optimizer.param_groups), None)
