"""Graphs that reach back over steps are told from those of one step."""

import pytest
import torch

from forgather_mem.heap.autograd import number_of, reaches_back, saved_by


def now(weight: torch.Tensor) -> int:
    """The number of an operation that has just run."""
    number = number_of((weight * 2).grad_fn)
    assert number is not None
    return number


def test_a_sum_of_losses_reaches_back_and_the_loss_of_one_step_does_not() -> None:
    weight = torch.ones(3, requires_grad=True)
    total, looked = weight.sum(), now(weight)
    for _ in range(5):
        total = total + (weight * 2).sum()
    assert reaches_back(total.grad_fn, looked, set())
    assert not reaches_back((weight * 2).exp().sum().grad_fn, looked, set())
    assert not reaches_back(total.grad_fn, now(weight), set()), "it has not grown since"
    assert not reaches_back(None, looked, set())


def test_what_was_visited_for_another_tensor_is_not_visited_again() -> None:
    weight = torch.ones(3, requires_grad=True)
    old, looked = weight.sum(), now(weight)
    grown = old + weight.sum()
    seen: set[object] = set()
    assert reaches_back(grown.grad_fn, looked, seen)
    assert not reaches_back(grown.grad_fn, looked, seen)


class Keeps(torch.autograd.Function):
    """Saves so many copies of its input."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, given: torch.Tensor, number: int) -> torch.Tensor:
        ctx.save_for_backward(*(given.clone() for _ in range(number)))
        return given * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * 2, None


@pytest.mark.parametrize("number", [0, 1, 3])
def test_what_a_users_function_saves_is_found_also_where_it_saves_nothing(number: int) -> None:
    made = Keeps.apply(torch.ones(100, requires_grad=True), number)
    assert sorted(size for _, size in saved_by(made.grad_fn)) == [400] * number
