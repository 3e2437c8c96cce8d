"""What can't be planned is told by its line."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.refusal import problem_of

pytestmark = pytest.mark.plans


def asks_for_a_value(loss: torch.Tensor) -> None:
    print(loss.sum().item())


def depends_on_a_value(loss: torch.Tensor) -> None:
    if loss.max() > 3:
        print(loss)


def chooses_by_a_mask(loss: torch.Tensor) -> None:
    chosen = loss[loss > 0]
    chosen.sum()


def is_wrong(loss: torch.Tensor) -> None:
    loss.view(7, 7)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (
            asks_for_a_value,
            r"test_refusal.py:\d+ \(print\(loss.sum\(\).item\(\)\)\): .item\(\) or a condition needs .*detach\(\)",
        ),
        (depends_on_a_value, r"\(if loss.max\(\) > 3:\): .item\(\) or a condition needs a value"),
        (chooses_by_a_mask, r"\(chosen = loss\[loss > 0\]\): nonzero\(\) or a mask as an index needs a value"),
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
    config = MixtralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, experts_implementation="eager",
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    with pytest.raises(PlanError, match=r"^\w+\.py:\d+ \(.*\): ") as caught:
        forgather_mem.plan(model, model, None, torch.zeros(1, 8, dtype=torch.long))
    assert "pretending.py" not in str(caught.value)


def test_a_fork_after_gradients_on_a_machine_with_a_device_is_explained() -> None:
    of_torch = (
        "Unable to handle autograd's threading in combination with fork-based multiprocessing. "
        "See https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork"
    )
    told = problem_of(RuntimeError(of_torch))
    assert "plan before the first backward(), or with `forgather-mem plan SCRIPT`" in told
    assert "Unable" not in told
