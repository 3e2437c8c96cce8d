"""What is alive beside a training counts, against all storages that go into or out of its operations."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.planning.compared import compared
from tests.planning.counted import alive_tensors, storage_of

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


class Distils:
    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher


def test_a_teacher_counts_from_the_start_and_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 512, 3, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    distils = Distils(nn.Conv2d(512, 512, 3))

    def step(batch: torch.Tensor) -> None:
        (model(batch).mean((1, 2, 3)) - distils.teacher(model(batch)).mean((1, 2, 3))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = compared(step, model, optimizer, torch.zeros(2, 3, 12, 12), *distils.teacher.parameters())
    assert {row.parts["other models"] for row in plan.phases} == {4 * (512 * 512 * 9 + 512)}
    assert plan.notes[1].startswith("Other models: `Distils.teacher` ")


def test_a_graph_that_no_optimizer_needs_is_a_part_of_its_own() -> None:
    model, teacher = nn.Linear(64, 256), nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: torch.Tensor) -> None:
        (model(batch) - teacher(batch)).square().mean().backward()
        optimizer.step()

    plan = compared(step, model, optimizer, torch.zeros(128, 64), *teacher.parameters())
    assert plan.highest_parts()["graphs of other models"] >= 128 * 512 * 4
    assert f"No optimizer trains {plan.untrained[0]}: " in plan.notes[-1]


def test_a_working_copy_whose_gradients_go_to_weights_of_the_optimizer_is_trained() -> None:
    model, master = nn.Linear(64, 512, bias=False), nn.Linear(64, 512, bias=False)
    optimizer = torch.optim.SGD(master.parameters())

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        master.weight.grad, model.weight.grad = model.weight.grad, None
        optimizer.step()

    assert not compared(step, master, optimizer, torch.zeros(128, 64), *model.parameters()).untrained


def test_a_table_and_a_bank_of_features_count_and_views_of_weights_do_not() -> None:
    storages = {storage_of(one)._cdata: storage_of(one).nbytes() for one in alive_tensors()}  # of other tests
    model = nn.Linear(64, 128)
    optimizer = torch.optim.AdamW(model.parameters())
    table, bank = torch.zeros(10_000, 64), torch.zeros(5_000, 128)
    untouched, views = torch.zeros(300_000), [one.data for one in model.parameters()]

    def step(batch: torch.Tensor) -> None:
        features = model(table[batch])
        (features @ bank.T).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            bank[: len(batch)] = features
            for view in views:
                view.mul_(0.99)

    plan = compared(step, model, optimizer, torch.arange(32), table, bank, untouched)
    assert plan.parts["other tensors"] == pytest.approx(
        table.nbytes + bank.nbytes + untouched.nbytes + sum(storages.values()), rel=0.001
    )
    assert plan.notes[0].startswith("Other tensors: `")


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (torch.Tensor.detach, "Kept from step to step: `step` of compared() 1.0 MiB."),
        (lambda features: features.detach().cpu().numpy()[:2], "A value was taken as 1 ("),
    ],
)
def test_a_queue_is_planned_until_it_is_full(stored: Callable[[torch.Tensor], object], told: str) -> None:
    """An array holds the memory of its tensor."""
    model, kept = nn.Linear(64, 512), list[object]()
    optimizer = torch.optim.SGD(model.parameters())

    def step(batch: torch.Tensor) -> None:
        features = model(batch)
        features.mean().backward()
        optimizer.step()
        kept.append(stored(features))
        del kept[:-3]

    (note,) = compared(step, model, optimizer, torch.zeros(256, 64)).notes
    assert note.startswith(told)
