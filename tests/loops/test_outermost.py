"""The modules that a training calls are found among all that are alive, and heard."""

import copy
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forgather_mem.loops.outermost import Outermost


class Calls:
    """What was heard, in order: the name of the module's class and its first argument, or None at its end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.outputs: list[object] = []

    def begins(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.heard.append((type(module).__name__, *arguments[:1]))

    def ends(self, outputs: object) -> None:
        self.outputs.append(outputs)


class Wrapper(nn.Module):
    """Calls its inner module, or is only its place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.inner(rows)


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters())


def test_only_the_outermost_module_that_holds_trained_parameters_is_heard() -> None:
    model, other, calls = Wrapper(nn.Linear(2, 2)), nn.Linear(2, 2), Calls()
    found = Outermost([*model.modules(), other, "no module"], [optimizer_of(model)])
    stop, rows = found.listen(calls.begins, calls.ends), torch.ones(1, 2)
    expected = model(rows)
    other(rows)
    assert found.as_one() is model
    assert calls.heard == [("Wrapper", rows)]
    assert torch.equal(calls.outputs[0], expected)  # type: ignore[arg-type]
    stop()
    model(rows)
    assert len(calls.heard) == 1
    assert "__call__" not in vars(Wrapper)


def test_an_exception_that_leaves_the_module_is_heard_as_its_end() -> None:
    model, calls = Wrapper(nn.Linear(2, 2)), Calls()
    stop = Outermost(model.modules(), [optimizer_of(model)]).listen(calls.begins, calls.ends)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    assert calls.outputs == [None]
    model(torch.ones(1, 2))
    assert [name for name, *_ in calls.heard] == ["Wrapper", "Wrapper"]
    stop()


def test_a_wrapper_that_is_never_called_makes_way_for_what_it_holds() -> None:
    model, calls = Wrapper(Wrapper(nn.Linear(2, 2))), Calls()
    found = Outermost(model.modules(), [optimizer_of(model)])
    stop, rows = found.listen(calls.begins, calls.ends), torch.ones(1, 2)
    for _ in range(5):
        model.inner.inner(rows)
        found.are_heard_in_each_step()
    assert {name for name, *_ in calls.heard} == {"Linear"}
    assert found.are_heard_in_each_step() is False
    model.inner.inner(rows)
    assert found.are_heard_in_each_step() is True
    stop()


def test_two_models_are_one_to_callbacks_and_neither_is_kept_alive() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(3, 3)
    found = Outermost([first, second], [optimizer_of(first), optimizer_of(second)])
    both = found.as_one()
    assert sorted(parameter.numel() for parameter in both.parameters()) == [2, 3, 4, 9]
    del both, second
    assert found.as_one() is first
    del first
    assert found.as_one() is None


def test_nothing_is_changed_inside_a_compiled_call() -> None:
    class Compiled(Wrapper):
        """Of no other test."""

    model, calls = Compiled(nn.Linear(2, 2)), Calls()
    model.compile(backend="eager")
    Outermost([model], [optimizer_of(model)]).listen(calls.begins, calls.ends)
    assert "__call__" not in vars(Compiled)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # of torch.jit
@pytest.mark.filterwarnings("ignore:.*is not supported in Python 3.14:FutureWarning")  # of the same
def test_a_module_that_is_heard_is_saved_copied_and_scripted_as_ever(tmp_path: Path) -> None:
    model, alone, calls = Wrapper(nn.Linear(2, 2)), Wrapper(nn.Linear(2, 2)), Calls()
    stop = Outermost(model.modules(), [optimizer_of(model)]).listen(calls.begins, calls.ends)
    rows = torch.ones(1, 2)
    assert vars(model).keys() == vars(alone).keys()
    assert not model._forward_hooks
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(loaded(rows), model(rows))
    assert torch.equal(copy.deepcopy(model)(rows), torch.jit.script(model)(rows))
    assert len(calls.heard) == 1, "copies are not heard"
    stop()


def test_a_class_with_a_call_of_its_own_gets_it_back() -> None:
    class Own(Wrapper):
        def __call__(self, *given: Any) -> Any:
            return super().__call__(*given)

    before, model, calls = Own.__call__, Own(nn.Linear(2, 2)), Calls()
    stop = Outermost([model], [optimizer_of(model)]).listen(calls.begins, calls.ends)
    model(torch.ones(1, 2))
    stop()
    assert (len(calls.heard), Own.__call__) == (1, before)


def test_an_error_in_the_module_has_the_traceback_that_it_has_without_us() -> None:
    def frames() -> list[str]:
        with pytest.raises(RuntimeError) as caught:
            model(torch.ones(1, 3))
        return [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(caught.value.__traceback__)]

    model, calls = Wrapper(nn.Linear(2, 2)), Calls()
    alone = frames()
    stop = Outermost(model.modules(), [optimizer_of(model)]).listen(calls.begins, calls.ends)
    assert frames() == alone
    stop()
