"""Norms of all gradients in one pass, against norms by hand."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forgather_mem.callbacks.training.grad_logger import _scale_of
from forgather_mem.callbacks.training.grad_norms import GradientHealth, GradientNorms, Norms
from tests.training import tiny_model


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def bf16_model() -> torch.nn.Module:
    model = tiny_model().to(torch.bfloat16)
    tokens = torch.arange(8).reshape(1, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    return model


def test_one_pass_over_the_gradients_and_no_wait_for_each(bf16_model: torch.nn.Module) -> None:
    norms = GradientNorms(bf16_model)
    with Operations() as operations:
        found = norms.read()
    assert operations.names.count("_foreach_norm") == 1
    assert operations.names.count("_local_scalar_dense") <= 1
    assert len(operations.names) < 10
    squares = [p.grad.double().square().sum().item() for p in bf16_model.parameters() if p.grad is not None]
    assert found.total == pytest.approx(math.sqrt(sum(squares)), rel=1e-3)


def test_what_a_gradient_scaler_has_multiplied_is_divided_again(bf16_model: torch.nn.Module) -> None:
    class Accelerator:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def clip(self) -> None: ...

    class Owner:
        accelerator = Accelerator()

        def clip(self) -> None: ...

    norms = GradientNorms(bf16_model)
    plain = norms.read()
    for call in (Accelerator().clip, Owner().clip):
        assert _scale_of(call) == 8.0
    scaled = norms.read(8.0)
    assert scaled.total == pytest.approx(plain.total / 8)
    assert _scale_of(len) == 1.0


def test_nothing_here_keeps_a_model_alive() -> None:
    model = tiny_model()
    norms = GradientNorms(model)
    assert norms.read() is None
    assert not norms.stale
    del model
    assert norms.stale
    assert norms.read() is None


def test_sparse_gradients_are_measured_too() -> None:
    model = torch.nn.Embedding(10, 3, sparse=True)
    model(torch.tensor([1, 1, 2])).sum().backward()
    found = GradientNorms(model).read()
    assert found.total == pytest.approx(math.sqrt(3 * 4 + 3 * 1))


# ---- gradients that vanish or explode ----


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
