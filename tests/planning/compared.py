"""Plans of a step against steps that really run."""

from collections.abc import Callable

import pytest
import torch

import forgather_mem
from forgather_mem.planning.result import Plan
from tests.planning.counted import Counted


def plain_step(
    call: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer,
    loss: Callable[[torch.Tensor], torch.Tensor] = torch.sum,
) -> Callable[[torch.Tensor], None]:  # fmt: skip
    """The step of most loops."""

    def step(batch: torch.Tensor) -> None:
        loss(call(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mean_square(given: torch.Tensor) -> torch.Tensor:
    return given.square().mean()


def compared(
    step: Callable[[torch.Tensor], object], model: object, optimizer: object, batch: torch.Tensor, *held: torch.Tensor,
    steps: int = 5, rel: float = 0.001,
) -> Plan:  # fmt: skip
    """The plan, which has to be what so many steps take beside what is held already."""
    plan = forgather_mem.plan(step, model, optimizer, batch)
    with Counted() as counted:
        counted.see(batch, held)
        for _ in range(steps):
            step(batch)
    assert plan.peak_bytes == pytest.approx(counted.peak_bytes, rel=rel)
    return plan
