"""Where real functions of torch were when memory ran out, from the traceback alone."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.place import (
    batch_on_the_way,
    failure_at,
    is_before_any_training,
    rows_outside_a_step,
    trained_by,
)
from tests.diagnose.oom.failures import FOUND


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


class Full(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return full()


class FullWhenMade(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        full()


class FullFile(io.BytesIO):
    read = readinto = write = seek = tell = full  # type: ignore[assignment]


class FullOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        full()


def caught(work: Callable[[], object]) -> BaseException:
    with pytest.raises(MemoryError) as error:
        work()
    return error.value


def place(work: Callable[[], object], model: Any = None) -> Failure:
    return failure_at(caught(work), FOUND, model)


def test_each_phase_is_known_by_the_functions_on_the_way() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    rows = torch.utils.data.DataLoader([1, 2], collate_fn=full)
    weights = torch.zeros(2, requires_grad=True)
    weights.register_hook(full)
    found = {
        "startup": place(FullWhenMade),
        "data": place(lambda: next(iter(rows))),
        "forward": place(lambda: Full()(torch.zeros(1))),
        "backward": place(lambda: weights.sum().backward()),
        "optimizer": place(lambda: FullOptimizer(parameters).step()),
        "save": place(lambda: torch.save({"a": 1}, FullFile())),
        "resume": place(lambda: torch.load(FullFile())),
        "": place(full),
    }
    assert {phase: one.phase for phase, one in found.items()} == {phase: phase for phase in found}
    assert found["data"].functions[-1] == "full"
    assert found["data"].layer is None


def test_the_outermost_phase_counts() -> None:
    weights = torch.zeros(2, requires_grad=True)
    calls: list[int] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return Full()(x) if len(calls) > 1 else x.exp()

    again = place(lambda: checkpoint(layer, weights, use_reentrant=False).sum().backward())
    assert (again.phase, again.layer) == ("backward", "Full")


def test_the_passes_of_an_optimizers_closure_are_no_optimizer_step() -> None:
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weights])
    hook = weights.register_hook(full)

    def model() -> torch.Tensor:
        return Full()(weights)  # type: ignore[no-any-return]

    def loss() -> torch.Tensor:
        return full(weights)  # type: ignore[no-any-return]

    def gradients() -> torch.Tensor:
        value = weights.sum()
        value.backward()
        return value

    assert [place(lambda work=work: optimizer.step(work)).phase for work in (model, loss, gradients)] == [
        "forward", "forward", "backward",
    ]  # fmt: skip
    hook.remove()
    optimizer._gather_flat_grad = full  # type: ignore[method-assign]
    assert place(lambda: optimizer.step(weights.sum)).phase == "optimizer"


def test_a_layer_has_its_name_in_the_model() -> None:
    model = torch.nn.ModuleDict({"inner": torch.nn.Sequential(torch.nn.Identity(), Full())})
    x = torch.zeros(3, 4)
    assert place(lambda: model["inner"](x)).layer == "1 (Full)", "below the outermost that was called"
    assert place(lambda: model["inner"](x), model).layer == "inner.1"
    assert place(lambda: Full()(x), model).layer == "Full"
    assert place(full, model).layer is None


def test_an_error_that_was_raised_anew_keeps_its_place() -> None:
    def wrapped() -> None:
        try:
            Full()(torch.zeros(1))
        except MemoryError as error:
            raise RuntimeError("the step failed") from error

    with pytest.raises(RuntimeError) as error:
        wrapped()
    assert failure_at(error.value, FOUND).phase == "forward"


def test_a_copy_of_the_optimizers_state_is_what_a_checkpoint_is_made_of() -> None:
    class FullCopy:
        __deepcopy__ = full

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "last": FullCopy()}
    found = failure_at(caught(lambda: copy.deepcopy(state)), FOUND, model, optimizer)
    assert found.operation is not None
    assert (found.phase, found.operation.copied) == ("save", ("model", "optimizer"))
    only_model = failure_at(caught(lambda: copy.deepcopy([model, FullCopy()])), FOUND, model, optimizer)
    assert only_model.phase == ""


def test_model_optimizer_and_batch_of_a_plain_script_are_found() -> None:
    def script() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), Full())
        optimizer = torch.optim.SGD(model.parameters())
        batch = torch.zeros(6, 4)
        for _ in range(1):
            optimizer.zero_grad()
            model(batch)

    error = caught(script)
    model, optimizer = trained_by(error)
    assert type(model) is torch.nn.Sequential
    assert type(optimizer) is torch.optim.SGD
    assert batch_on_the_way(error) == Batch(6, None, (4,))
    assert batch_on_the_way(caught(full)) is None


def test_before_any_training_is_judged_by_what_has_run() -> None:
    def makes_a_table() -> None:
        full()

    def trains_elsewhere() -> None:
        torch.zeros(1, requires_grad=True).sum().backward()

    def in_a_loop() -> None:
        for _ in range(2):
            full()

    def after_training() -> None:
        torch.zeros(1, requires_grad=True).sum().backward()
        full()

    assert is_before_any_training(inner(makes_a_table))
    assert trains_elsewhere() is None, "a function before it in the file, which has not run there"
    assert not is_before_any_training(inner(in_a_loop))
    assert not is_before_any_training(inner(after_training))


def inner(work: Callable[[], object]) -> BaseException:
    """The error with the frames from the function on: those of the test run's own loops are not the script's."""
    error = caught(work)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not work.__code__:  # type: ignore[attr-defined]
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_generation_counts_rows_alone() -> None:
    generating = caught(lambda: Full()(torch.zeros(8, 1, dtype=torch.long)))
    assert rows_outside_a_step(generating, "generate") == Batch(8, None)
    assert rows_outside_a_step(generating, "evaluate") == Batch(8, 1)
    assert rows_outside_a_step(generating, "forward") is None
