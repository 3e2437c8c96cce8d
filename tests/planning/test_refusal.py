"""What can't be planned is told by its line."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.refusal import problem_of

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


def counts_how_often(loss: torch.Tensor) -> None:
    loss.flatten().long().bincount()


def is_wrong(loss: torch.Tensor) -> None:
    loss.view(7, 7)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (
            counts_how_often,
            r"test_refusal.py:\d+ \(loss.flatten\(\).long\(\).bincount\(\)\): the size of what aten.bincount",
        ),
        (is_wrong, r"\(loss.view\(7, 7\)\): RuntimeError: shape '\[7, 7\]' is invalid"),
    ],
)
def test_the_line_is_named(then: Callable[[torch.Tensor], None], told: str) -> None:
    model = nn.Linear(4, 4)

    def step(batch: torch.Tensor) -> None:
        then(model(batch))

    with pytest.raises(PlanError, match=told):
        forgather_mem.plan(step, model, None, torch.zeros(2, 4))


def test_a_step_that_only_goes_forward_is_refused() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(PlanError, match=r"called no backward\(\): give a function that also does"):
        forgather_mem.plan(lambda batch: model(batch).sum(), model, optimizer, torch.zeros(2, 4))


def test_a_function_that_takes_no_batch_is_told_without_a_line_of_ours() -> None:
    model = nn.Linear(4, 4)

    def training_step(batch: torch.Tensor, number: int) -> None:
        model(batch)

    with pytest.raises(PlanError, match=r"^TypeError: .*training_step\(\) missing 1 required positional argument"):
        forgather_mem.plan(training_step, model, None, torch.zeros(2, 4))


def test_without_a_line_of_the_users_it_is_the_librarys() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(PlanError, match=r"^[\w/]+\.py:\d+ \(.*\): ") as caught:
        forgather_mem.plan(model, model, None, torch.zeros(1, 5))
    assert "pretending.py" not in str(caught.value)


def test_a_fork_after_gradients_on_a_machine_with_a_device_is_explained() -> None:
    of_torch = (
        "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
        "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
    )
    told = problem_of(RuntimeError(of_torch))
    assert "plan before the first backward(), or with `forgather-mem plan SCRIPT`" in told
    assert "Unable" not in told
