"""What is answered in place of values, and what comes of it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from forgather_mem.planning.stand_ins import StandIns
from tests.planning.compared import compared

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]

LABELS = torch.arange(128) % 50


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(batch), LABELS[: len(batch)].repeat(len(batch) // 128 or 1)[: len(batch)])


def logs(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, batch)
    assert float(f"{loss.detach():.2f}") + loss.item() > 0
    assert model(batch).argmax(-1).tolist()[-1] is not None
    return loss


def is_checked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, batch)
    if torch.isnan(loss):
        raise ValueError("diverged")
    assert [torch.isfinite(loss).tolist(), torch.isinf(loss).tolist()] == [True, False]
    return loss


def chooses(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    first, *others = model.children()
    features = first(batch)
    chosen = features.max(-1).values > -1e9
    return cross_entropy(nn.Sequential(*others)(features[chosen]), LABELS[chosen])


def chooses_little(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch)
    chosen = logits.max(-1).values > -1e9
    return cross_entropy(logits[chosen], LABELS[chosen])


def routes(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """As a mixture of experts does: each row goes to two of five, and each of these has its rows."""
    logits = model(batch)
    experts = logits[:, :5].topk(2, -1).indices
    each = (torch.where(experts == one)[0] for one in range(5))
    return torch.stack([cross_entropy(logits[rows], LABELS[rows]) for rows in each]).nanmean()


def goes_again(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, batch)
    return loss_of(model, torch.cat([batch, batch])) if loss > 1 else loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [
        (logs, "A value was taken as 1 (tests/planning/test_stand_ins.py:"),
        (is_checked, ""),
        (chooses, "All is planned of what a mask chooses (tests/planning/test_stand_ins.py:"),
        (chooses_little, ""),
        (routes, ""),
        (goes_again, "The peak depends on a value (tests/planning/test_stand_ins.py:"),
    ],
)
def test_a_training_that_asks_for_values_is_planned_at_its_highest(how: Loss, told: str) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 50))
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(128, 64)

    def step(batch: torch.Tensor) -> None:
        how(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = compared(step, model, optimizer, batch, LABELS, steps=3)
    assert "".join(plan.notes).startswith(told)
    assert len(plan.notes) == bool(told)
    assert plan.bound == ("at most" if how in (chooses, goes_again) else "exact")


def test_a_closure_is_called_until_the_history_is_full() -> None:
    model = nn.Linear(64, 50)
    optimizer, batch = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3), torch.randn(128, 64)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    plan = compared(lambda _: optimizer.step(closure), model, optimizer, batch, steps=6, rel=0.002)
    assert plan.notes[0] == "A history of an optimizer is planned full (3 iterations)."
    assert not any("depends on a value" in note for note in plan.notes)


def test_a_loop_that_waits_for_a_condition_ends() -> None:
    answers, asked = StandIns(), 0
    while answers.value(torch.bool):
        asked += 1
    assert asked == 63
