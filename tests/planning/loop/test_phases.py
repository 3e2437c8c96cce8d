"""Phases and parts of a planned step."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import forgather_mem

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = layer(rows) if self.reentrant is None else checkpoint(layer, rows, use_reentrant=self.reentrant)
        return rows


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(batch: torch.Tensor) -> None:
        model(batch.requires_grad_()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def phases_of(reentrant: bool | None = None) -> list[tuple[int, str]]:
    model = Net(reentrant)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = forgather_mem.plan(step_of(model, optimizer), model, optimizer, torch.zeros(8, 64))
    return [(row.step, row.phase) for row in plan.phases if row.phase != "data"]


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_a_step_has_three_phases_however_it_is_computed(reentrant: bool | None) -> None:
    assert phases_of(reentrant) == [(step, phase) for step in (1, 2) for phase in ("forward", "backward", "optimizer")]


def test_parts_are_what_they_are_for() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    plan = forgather_mem.plan(step_of(model, optimizer), model, optimizer, torch.zeros(8, 64))
    stepping = next(row for row in plan.phases if (row.step, row.phase) == (2, "optimizer"))
    weights = 64 * 64 * 4
    for part in ("parameters", "gradients", "optimizer"):
        assert stepping.parts[part] == weights
    assert stepping.parts["batch"] == 8 * 64 * 4
