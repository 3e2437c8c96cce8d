"""Every trainer of a class is met when it is made, and its constructor fails as without us."""

import traceback

import pytest

from forgather_mem.callbacks.trainer.method_patches import call_when_made


def trainers() -> type:
    class Trainer:
        """A trainer whose constructor may fail."""

        def __init__(self, steps: int) -> None:
            """Train for so many steps."""
            if steps < 1:
                raise ValueError(f"steps={steps}")
            self.steps = steps

    return Trainer


def test_each_object_also_of_a_subclass_is_met_once_it_is_made() -> None:
    base, met = trainers(), []
    call_when_made(base, lambda trainer: met.append(trainer.steps))

    class Subclass(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(7)

    base(3)
    Subclass()
    assert met == [3, 7]
    assert base.__init__.__doc__ == "Train for so many steps."  # type: ignore[misc]


def test_an_error_of_the_constructor_shows_nothing_of_us() -> None:
    base, alone = trainers(), trainers()
    call_when_made(base, lambda trainer: pytest.fail("it was not made"))

    def frames(kind: type) -> list[str]:
        with pytest.raises(ValueError, match="steps=0") as caught:
            kind(0)
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    assert frames(base) == frames(alone)


def test_a_failure_of_ours_leaves_the_trainer_whole(caplog: pytest.LogCaptureFixture) -> None:
    base = trainers()
    call_when_made(base, lambda trainer: trainer.no_such_attribute)
    assert base(3).steps == 3
    assert "training continues" in caplog.text
