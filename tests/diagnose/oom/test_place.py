"""Where real functions of torch were when memory ran out, from the traceback alone."""

import copy
import inspect
import io
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.explanation import explained, failure_outside
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.place import failure_at, trained_by
from tests.diagnose.oom.failures import FOUND

pytestmark = pytest.mark.alone(forked=True)  # each failure looks through the heap, of which all tests have more


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


def place(work: Callable[[], object], model: Any = None, told: str = "other") -> Failure:
    return failure_at(caught(work), FOUND, model, told=told)


@pytest.mark.slow
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
        "other": place(full),
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
    found = failure_at(caught(lambda: copy.deepcopy(state)), FOUND, model, optimizer, told="other")
    assert found.phase == "save"
    only_model = failure_at(caught(lambda: copy.deepcopy([model, FullCopy()])), FOUND, model, optimizer, told="other")
    assert only_model.phase == "other"


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
    assert failure_at(error, FOUND).batch == Batch(6, None, (4,))
    assert place(full).batch is None


@pytest.mark.slow
def test_before_any_training_is_judged_by_what_has_run() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def makes_a_table() -> None:
        full()

    def in_a_loop() -> None:
        for _ in range(2):
            full()

    assert failure_at(inner(makes_a_table), FOUND).phase == "startup"
    assert failure_at(inner(in_a_loop), FOUND).phase == "other"
    assert failure_at(inner(makes_a_table), FOUND, model, optimizer).phase == "startup"
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    assert failure_at(inner(makes_a_table), FOUND, model, optimizer).phase == "other"


def inner(work: Callable[[], object]) -> BaseException:
    """The error with the frames from the function on: those of the test run's own loops are not the script's."""
    error = caught(work)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not work.__code__:  # type: ignore[attr-defined]
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_generation_counts_rows_alone() -> None:
    tokens = torch.zeros(8, 1, dtype=torch.long)

    def generate() -> None:
        Full()(tokens)

    code = compile(inspect.getsource(generate).strip(), "transformers/generation/utils.py", "exec")
    names: dict[str, Any] = {"Full": Full, "tokens": tokens}
    exec(code, names)
    assert (place(names["generate"]).phase, place(names["generate"]).batch) == ("generate", Batch(8, None))
    assert place(generate, told="evaluate").batch == Batch(8, 1)


def test_the_trained_model_in_evaluation_mode_evaluates_and_a_teacher_does_not() -> None:
    model, teacher = Full().eval(), Full().eval()
    model.weight, teacher.weight = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    x = torch.zeros(2)
    assert place(lambda: model(x), model, "forward").phase == "evaluate"
    assert place(lambda: teacher(x), model, "forward").phase == "forward"
    model.train()
    assert place(lambda: model(x), model, "forward").phase == "forward"


class EndsWorkers(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield 0


def test_a_loop_without_settings_is_told_to_have_fewer_workers_where_one_was_killed() -> None:
    with pytest.raises(RuntimeError, match="worker") as error:
        next(iter(torch.utils.data.DataLoader(EndsWorkers(), num_workers=1)))
    failure = failure_outside(error.value, FOUND)
    assert (failure.phase, failure.num_workers) == ("data", 1)
    assert [change.text for change in explained(failure)[1]] == ["DataLoader(num_workers=0)"]
