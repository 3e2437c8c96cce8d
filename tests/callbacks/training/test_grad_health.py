"""What is told of a series of gradient norms."""

import math

from forgather_mem.callbacks.training.grad_logger import GradientHealth
from forgather_mem.callbacks.training.grad_norms import Norms


def test_healthy_gradients_are_not_told() -> None:
    health = GradientHealth(1e-6, 100.0, may_overflow=True)
    for step in range(50):
        layers = {"a": 1.0 + step % 3, "b": 0.001 * (1 + step % 5), "lora": 0.0 if step < 2 else 0.1}
        if step == 20:
            layers["a"] = math.inf  # a gradient scaler that looks for its scale
        assert not health.look(Norms(total=3.0, layers=layers, tracked={}), 1.0, step)


def test_a_trouble_that_comes_back_is_told_again() -> None:
    health, told = GradientHealth(1e-6, 100.0, may_overflow=False), []
    for step, norm in enumerate([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]):
        told += health.look(Norms(total=1.0, layers={"a": 1.0, "b": norm}, tracked={}), None, step)
    assert [finding.step for finding in told] == [2, 7]
    assert told[0].data == {"what": "vanishing", "layer": "b"}
