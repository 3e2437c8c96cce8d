"""What torch only records is told from what it computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from forgather_mem.system.tracing import is_traced

TOLD: list[bool] = []  # a module's attributes are as before after an export


class Told(torch.nn.Module):
    """Notes in each call whether it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, rows: Any) -> Any:
        TOLD.append(is_traced())
        return self.layer(rows)


ROWS = torch.ones(3, 4)


def with_fake_tensors(model: torch.nn.Module) -> object:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return model(ROWS)


# Those that tests/loops/test_observed.py has not
TRACED: dict[str, Callable[[Told], object]] = {
    "make_fx before dispatch": lambda model: make_fx(lambda rows: model(rows), pre_dispatch=True)(ROWS),
    "jvp": lambda model: torch.func.jvp(model, (ROWS,), (ROWS,)),
    "fake tensors": with_fake_tensors,
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.filterwarnings("ignore")  # torch's own, of what it will do without
def test_a_call_is_traced(name: str) -> None:
    TOLD.clear()
    TRACED[name](Told())
    assert TOLD
    assert all(TOLD)
    assert not is_traced()


def test_a_call_with_values_is_not() -> None:
    TOLD.clear()
    model = Told()
    model(ROWS)
    with torch.no_grad():
        model(ROWS)
    torch.func.functional_call(model, dict(model.named_parameters()), (ROWS,))
    torch.utils.checkpoint.checkpoint(model, ROWS, use_reentrant=False)
    assert TOLD == [False] * 4


def test_to_a_compiler_it_is_a_constant() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def compiled(rows: torch.Tensor) -> torch.Tensor:
        return rows + 1 if is_traced() else rows

    assert torch.equal(compiled(ROWS), ROWS + 1)
