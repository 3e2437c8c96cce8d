"""The events of a training and its phases: each name once, with what is true of it. Everything else is derived.

Almost nothing is imported here: the waiting parent of `forgather-mem run` has to stay small.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost the parent a megabyte and 4 ms
if TYPE_CHECKING:
    from collections.abc import Iterable

_INSIDE = "inside a step"  # `state.global_step` does not count the step yet; its readings belong to the step's record
_BEGINS = "begins a run"  # fires inside a training only, so that a callback added late may begin a run with it

# Name without "on_"; number in the black box; what it is. The numbers are a file format: a new event takes the next
# number, whatever its place, and none is ever given again. 0 stands for events without a record of their own.
_EVENT_ROWS = (
    ("init_end", 11, ()),
    ("train_begin", 5, (_BEGINS,)),
    ("train_end", 6, ()),
    ("epoch_begin", 7, (_BEGINS,)),
    ("epoch_end", 8, ()),
    ("step_begin", 0, (_INSIDE, _BEGINS)),
    ("substep_end", 0, (_INSIDE, _BEGINS)),
    ("pre_optimizer_step", 0, (_INSIDE, _BEGINS)),
    ("optimizer_step", 0, (_INSIDE, _BEGINS)),
    ("step_end", 1, (_BEGINS,)),
    ("evaluate", 2, ()),
    ("predict", 3, ()),
    ("save", 4, ()),
    ("log", 9, ()),
    ("prediction_step", 10, ()),
    ("push_begin", 12, ()),
)

_STEP = "in every step"
_OPAQUE = "opaque"  # code inside it belongs to it: the forward pass of an evaluation is evaluation

# Name; number in the black box, as above; what it is.
_PHASE_ROWS = (
    ("startup", 1, ()),
    ("data", 2, (_STEP,)),
    ("forward", 3, (_STEP,)),
    ("backward", 4, (_STEP,)),
    ("optimizer", 5, (_STEP,)),
    ("evaluate", 6, (_OPAQUE,)),
    ("save", 7, (_OPAQUE,)),
    ("resume", 8, (_OPAQUE,)),
    ("generate", 9, (_OPAQUE,)),
    ("other", 0, ()),
)


def _with(what: str, rows: Iterable[tuple[str, int, tuple[str, ...]]]) -> frozenset[str]:
    return frozenset([name for name, _, classes in rows if what in classes])


def _by_number(rows: Iterable[tuple[str, int, tuple[str, ...]]]) -> tuple[str, ...]:
    """The names at the places of their numbers; at 0 "other"."""
    return ("other", *[name for _, name in sorted([(number, name) for name, number, _ in rows if number])])


EVENTS = tuple([name for name, _, _ in _EVENT_ROWS])
EVENTS_INSIDE_A_STEP = _with(_INSIDE, _EVENT_ROWS)
EVENTS_THAT_BEGIN_A_RUN = _with(_BEGINS, _EVENT_ROWS)
EVENT_NUMBERS = _by_number(_EVENT_ROWS)  # as stored in the black box

PHASES = tuple([name for name, _, _ in _PHASE_ROWS])
STEP_PHASES = _with(_STEP, _PHASE_ROWS)
OPAQUE_PHASES = _with(_OPAQUE, _PHASE_ROWS)
PHASE_NUMBERS = _by_number(_PHASE_ROWS)
PHASE_NUMBER = {name: number for number, name in enumerate(PHASE_NUMBERS)}
# Readings here cover phases and collections outside any step: so these get the right step, and the last of them are
# reported at all.
BETWEEN_STEPS = ("evaluate", "save", "train_end")
