"""What `estimate_minimum` says before the first step, against what is there after it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from forgather_mem.callbacks import estimate_minimum
from tests.training import tiny_model

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "AdamW, amsgrad": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "SGD": torch.optim.SGD,
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "NAdam": torch.optim.NAdam,
}


def bytes_of(tensors: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_estimate_is_what_is_there_after_the_first_step(name: str) -> None:
    model = tiny_model()
    model.get_input_embeddings().requires_grad_(False)
    optimizer = OPTIMIZERS[name](model.parameters())
    before = estimate_minimum(model, optimizer)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert name == "Adagrad" or not optimizer.state
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    assert before.parameters_bytes == bytes_of(model.parameters()) + bytes_of(model.buffers())
    assert before.gradients_bytes == bytes_of(p.grad for p in model.parameters() if p.grad is not None)
    state = [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor)]
    assert before.optimizer_bytes == sum(tensor.nbytes for tensor in state)
    assert estimate_minimum(model, optimizer) == before
    assert before.total_bytes == before.parameters_bytes + before.gradients_bytes + (before.optimizer_bytes or 0)


def test_a_schedulers_wrapper_and_hooks_of_the_optimizer_are_not_called() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("hook"))
    weights = model.weight.detach().clone()
    assert estimate_minimum(model, optimizer).optimizer_bytes == 2 * 20 * 4 + 2 * 4
    assert not calls
    assert not optimizer.state
    assert torch.equal(model.weight, weights)
    assert all(group["params"][0] is model.weight for group in optimizer.param_groups)


class NeedsNumbers(Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad.sum().item() > 0:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)


def test_what_can_not_be_known_is_not_guessed() -> None:
    model = torch.nn.Linear(4, 4)
    assert estimate_minimum(model).optimizer_bytes is None
    assert estimate_minimum(model, NeedsNumbers(model.parameters())).optimizer_bytes is None
    assert estimate_minimum(model, torch.optim.Adafactor(model.parameters())).optimizer_bytes is None
    assert estimate_minimum(model, object()).optimizer_bytes is None
