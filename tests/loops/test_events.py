"""A loop's callbacks are called as transformers' own handler calls them."""

from typing import Any

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

from forgather_mem.loops.events import CallbackList


class Notes(TrainerCallback):
    """Keeps what it is called with; the second of two returns another control."""

    def __init__(self, returned: Any = None) -> None:
        self.returned = returned
        self.called: list[tuple[Any, ...]] = []

    def on_log(self, args: Any, state: Any, control: Any, **objects: Any) -> Any:
        self.called.append((args, state, control, objects))
        return self.returned


class Other(TrainerCallback):
    """Of another class."""


def test_events_come_to_each_callback_with_what_transformers_gives_it() -> None:
    made = TrainerControl(should_log=True)
    ours, theirs = (Notes(), Notes(made), Notes()), (Notes(), Notes(made), Notes())
    state, control = TrainerState(), TrainerControl()
    given = ("on_log", "args", state, control)
    handler = CallbackHandler([*theirs], "model", None, "optimizer", None)
    assert CallbackList(ours, lambda: ("model", "optimizer")).call_event(*given, logs={"loss": 1.0}) is made
    assert handler.call_event(*given, logs={"loss": 1.0}) is made
    for one, other in zip(ours, theirs, strict=True):
        assert one.called == other.called
    assert ours[2].called[0][2] is made


def test_callbacks_come_and_go_as_instances_or_classes() -> None:
    notes = Notes()
    known = CallbackList([notes, Other], lambda: (None, None))
    known.add_callback(Notes)
    assert [type(one) for one in known.callbacks] == [Notes, Other, Notes]
    assert known.pop_callback(Notes) is notes
    assert isinstance(known.pop_callback(Other), Other)
    assert known.pop_callback(notes) is known.pop_callback(Other) is None
    (left,) = known.callbacks
    assert known.pop_callback(left) is left
    with pytest.raises(AttributeError, match="on_nothing"):
        CallbackList([notes], lambda: (None, None)).call_event("on_nothing", None, None, None)
