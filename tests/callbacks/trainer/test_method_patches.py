"""What stands around a method leaves no trace in an error that passes through it."""

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from forgather_mem.callbacks.trainer.method_patches import MethodPatches


class Trainer:
    def train(self) -> None:
        self.step()

    def step(self) -> None:
        try:
            {}["loss"]
        except KeyError as error:
            raise ValueError("no loss") from error


def around(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return call(*arguments, **keywords)


def told_by(trainer: Trainer) -> list[tuple[str, str, str | None]]:
    """File, function and line of each frame of the error that a training ends with, but for those of `around`."""
    try:
        trainer.train()
    except ValueError as error:
        entries = traceback.extract_tb(error.__traceback__)
        return [(entry.filename, entry.name, entry.line) for entry in entries if entry.name != "around"]
    return []


def test_the_traceback_is_as_without_us() -> None:
    trainer = Trainer()
    before = told_by(trainer)
    wrapped = MethodPatches()
    wrapped.wrap(trainer, "step", around)
    wrapped.wrap(trainer, "step", around)
    wrapped.wrap(trainer, "train", around)
    assert [name for _, name, _ in before] == ["told_by", "train", "step"]
    assert told_by(trainer) == before


def test_an_error_whose_frames_were_cleared_keeps_no_trainer() -> None:
    trainer = Trainer()
    wrapped = MethodPatches()
    wrapped.wrap(trainer, "step", around)
    wrapped.wrap(trainer, "train", around)
    with pytest.raises(ValueError) as caught:
        trainer.train()
    traceback.clear_frames(caught.tb)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


def test_an_error_that_is_ours_alone_keeps_its_place() -> None:
    trainer = Trainer()

    def fails(call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        raise RuntimeError("ours")

    MethodPatches().wrap(trainer, "train", fails)
    with pytest.raises(RuntimeError) as caught:
        trainer.train()
    assert caught.traceback[-1].name == "fails"
