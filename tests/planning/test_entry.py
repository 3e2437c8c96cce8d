"""`forgather_mem.plan` refuses what it can't plan before it forks."""

from __future__ import annotations

import pytest

import forgather_mem


def test_it_takes_a_trainer_or_a_function() -> None:
    with pytest.raises(TypeError, match=r"plan\(int\): give a Trainer"):
        forgather_mem.plan(3)


def test_a_function_needs_its_model_and_a_batch() -> None:
    with pytest.raises(TypeError, match="the model and a batch are needed"):
        forgather_mem.plan(print)
