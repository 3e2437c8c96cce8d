"""What is changed about a loop of a script's own, in the child that plans it: real models, loaders and optimizers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from forgather_mem.errors import PlanError
from forgather_mem.launch import own_loop
from forgather_mem.launch.own_loop import OwnLoop, without_graphs
from forgather_mem.planning.isolation.child import in_a_child
from forgather_mem.planning.result import Plan, PlannedShape

pytestmark = pytest.mark.plans  # forks compute gradients
ROWS = 24
PLAN = Plan(peak_bytes=1, phase="forward", step=2, rows=ROWS, reserved_bytes=0, phases=())


def collated(rows: Any) -> torch.Tensor:
    return torch.stack(rows)


def loop_of(batches: int = 1, passes: int = 1, rows: int | None = None) -> OwnLoop:
    """One that has learnt from a plan with so many batches and backward passes in a step."""
    loop = OwnLoop()
    loop.learn(replace(PLAN, accumulation=batches, passes=passes), rows)
    return loop


def edit(changed: dict[str, Any]) -> None:
    """Make all of these changes, as the child does before it goes on."""
    for one in loop_of().edits_of(changed):
        one()


@pytest.mark.parametrize(
    ("counts", "accumulation", "keeps_graphs"),
    [((1, 1), 1, False), ((4, 4), 4, False), ((8, 1), 1, True), ((2, 2), 2, False)],
)
def test_what_a_step_consists_of_is_learnt_from_the_plan(
    counts: tuple[int, int], accumulation: int, keeps_graphs: bool
) -> None:
    loop = loop_of(*counts)
    assert (loop.rows, loop.accumulation, loop.keeps_graphs) == (ROWS, accumulation, keeps_graphs)
    assert loop.settings.number("gradient_accumulation_steps") == accumulation
    assert not loop.settings.is_trainers
    assert loop_of(*counts, rows=7).settings.number("per_device_train_batch_size") == 7


def test_the_batches_of_an_evaluation_are_its_loaders() -> None:
    training, validation = (DataLoader([1] * 64, batch_size=rows) for rows in (ROWS, 32))
    loop = OwnLoop()
    loop.learn(replace(PLAN, evaluation=PlannedShape(32)), None)
    for one in loop.edits_of({"per_device_eval_batch_size": 4}):
        one()
    assert (len(list(training)), len(list(validation))) == (3, 16)
    with pytest.raises(PlanError, match="which loader makes"):
        loop_of(rows=5).edits_of({"per_device_eval_batch_size": 4})[0]()


def test_what_nobody_can_change_for_the_user_is_not_planned() -> None:
    with pytest.raises(PlanError, match="dtype of a loop of the script's own is not planned"):
        loop_of().edits_of({"dtype": "bfloat16"})
    changed = {"optim": "sgd", "gradient_accumulation_steps": 2, "per_device_eval_batch_size": 4}
    loop_of().edits_of(changed)
    assert changed == {}, "all of these can be"


@pytest.mark.parametrize(("name", "has_state"), [("sgd", False), ("adafactor", True)])
def test_optimizers_step_as_another_one(name: str, has_state: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.Adam([weight])

    def step() -> tuple[bool, int, int]:
        edit({"optim": name})
        weight.sum().backward()
        optimizer.step()
        (its,) = (one for one in own_loop.live_objects(torch.optim.Optimizer) if one is not optimizer)
        states = [value for state in its.state.values() for value in state.values() if torch.is_tensor(value)]
        return bool((weight != 1).all()), len(optimizer.state), sum(one.numel() for one in states if one.dim())

    moved, states_of_adam, numbers = in_a_child(step)
    assert (moved, states_of_adam, numbers > 0) == (True, 0, has_state)
    assert numbers < weight.numel(), "rows and columns"


def test_between_the_micro_batches_of_a_step_gradients_are_kept() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters())

    def twice(changed: dict[str, Any]) -> float:
        edit(changed)
        for zero in (optimizer.zero_grad, model.zero_grad):
            zero()
            model(torch.ones(1, 2)).sum().backward()
        return float(model.weight.grad.max()) if model.weight.grad is not None else 0.0

    assert in_a_child(lambda: twice({"gradient_accumulation_steps": 2})) == 2.0
    assert in_a_child(lambda: twice({})) == 1.0


def test_what_no_optimizer_trains_computes_without_a_graph() -> None:
    teacher, student = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(student.parameters())

    def graphs(of_evaluation: bool, trains: bool) -> list[bool]:
        without_graphs(None, of_evaluation)
        student.train(trains)
        return [model(torch.ones(1, 2)).requires_grad for model in (teacher, student)]

    assert in_a_child(lambda: graphs(False, trains=False)) == [False, True]
    assert in_a_child(lambda: graphs(True, trains=True)) == [False, True]
    assert in_a_child(lambda: graphs(True, trains=False)) == [False, False]
    assert teacher(torch.ones(1, 2)).requires_grad, "here nothing is changed"
    assert optimizer.param_groups


def test_an_evaluation_has_a_size_of_its_own() -> None:
    trains, evaluates = (DataLoader([torch.ones(3)] * 48, batch_size=ROWS, collate_fn=collated) for _ in range(2))
    running = iter(trains)

    def sizes() -> list[tuple[int, ...]]:
        edit({"per_device_eval_batch_size": 4})
        return [tuple(next(iter(one)).shape) for one in (trains, evaluates)]

    assert in_a_child(sizes) == [(ROWS, 3), (4, 3)], "one of them is busy: the training goes over it"
    assert len(next(running)) == ROWS
