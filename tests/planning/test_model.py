"""Models and optimizers without values."""

import pytest
import torch
from torch import nn

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.model import Emptied
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.storage_log import StorageLog

pytestmark = pytest.mark.alone(forked=True)  # a plan counts what other tests have left alive


def emptied(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> StorageLog:
    """The log of the model alone; what else this process holds is in another."""
    log = StorageLog()
    emptied = Emptied(Pretending(StorageLog()), log)
    emptied.model(model)
    if optimizer is not None:
        emptied.optimizer(optimizer)
    log.close()
    return log


def test_parameters_keep_their_form() -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    log = emptied(model)
    assert list(log.sizes) == [24, 8]
    assert isinstance(model.weight, nn.Parameter)
    assert (model.weight.requires_grad, model.bias.requires_grad) == (False, True)
    assert model.weight.is_leaf
    assert not model.weight._is_view()


def test_tied_weights_stay_one() -> None:
    model = nn.ModuleDict({"tokens": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["tokens"].weight
    log = emptied(model)
    assert model["head"].weight is model["tokens"].weight
    assert list(log.sizes) == [128]


def test_a_model_that_was_never_filled_is_as_good() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**14, 2**14)
    log = emptied(model)
    assert sum(log.sizes) == 4 * (2**28 + 2**14)
    assert model.weight.device.type == "cpu"


def test_buffers_of_the_host_keep_their_values() -> None:
    model = nn.BatchNorm1d(4)
    emptied(model)
    assert model.running_var.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_an_optimizer_has_the_new_parameters_and_its_state() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    log = emptied(model, optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(model.weight), id(model.bias)]
    assert log.parts == ["parameters"] * 2 + ["optimizer"] * 6
    assert sum(log.sizes[2:]) == 2 * (24 + 8) + 2 * 4


def test_weights_of_another_kind_are_refused_by_name() -> None:
    class Quantized(nn.Parameter):
        pass

    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight = Quantized(torch.zeros(2, 2))
    with pytest.raises(PlanError, match=r"0\.weight is a Quantized"):
        emptied(model)


def test_weights_without_a_size_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"0\.weight has no size"):
        emptied(nn.Sequential(nn.LazyLinear(2)))


def test_of_what_is_compiled_it_is_said_that_it_is_planned_as_if_not() -> None:
    model = nn.Linear(4, 4)
    step = torch.compile(lambda batch: model(batch).sum(), backend="eager")
    plan = forgather_mem.plan(lambda batch: step(batch).backward(), model, None, torch.zeros(2, 4))
    assert plan.notes == ("torch.compile is planned as if it were off: compiled it usually takes less.",)
