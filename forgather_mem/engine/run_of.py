"""Which run a trainer's state belongs to: a new state at each `train()`, seen by all callbacks of that training.

The run is kept beside the state. On it, everything that reads the state's attributes would meet the run:
`TrainerState(**vars(state))`, `json.dumps(vars(state))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from forgather_mem.telemetry.beside import Beside

if TYPE_CHECKING:
    from forgather_mem.engine.run import Run

_ATTRIBUTE = "_forgather_mem_run"  # on a state that can't be referenced weakly, such as a SimpleNamespace


class _Runs(Beside["Run"]):
    """The run of each state that is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.num_given = 0  # while it stays the same, no run begins
        self.followers: WeakSet[Any] = WeakSet()  # each has the summary of the run that has begun last, as `latest`

    def of(self, state: Any) -> Run | None:
        """The run of this state itself; a copy has none."""
        run: Run | None = self.get(state) or getattr(state, _ATTRIBUTE, None)
        return run

    def other_open(self, run: Run | None) -> Run | None:
        """A run other than this one that is open in this process."""
        known = [one for one, _ in tuple(self._known.values())]
        return next((one for one in known if one is not run and not one.closed and one.is_of_this_process), None)

    def give(self, state: Any, run: Run) -> None:
        """From now on this is the state's run."""
        self.num_given += 1
        for follower in self.followers:
            follower.latest = run.summary
        try:
            self[state] = run
        except TypeError:
            setattr(state, _ATTRIBUTE, run)


# A single instance, because a state has no other place than itself
RUNS = _Runs()
run_of = RUNS.of
