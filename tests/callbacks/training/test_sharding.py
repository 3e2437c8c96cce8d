"""By what parameters are spread over ranks: the marks that the libraries leave."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

from forgather_mem.callbacks.training.sharding import sharded_by


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4))


def test_a_model_of_one_process_is_whole() -> None:
    assert sharded_by(net(), None) is None
    assert sharded_by(net(), SimpleNamespace(fsdp=[])) is None


def test_arguments_and_the_launcher_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sharded_by(net(), SimpleNamespace(fsdp=["full_shard"])) == "FSDP"
    for value, expected in (("true", "FSDP"), ("1", "FSDP"), ("false", None), ("", None)):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", value)
        assert sharded_by(net(), None) == expected


@pytest.mark.parametrize(("mark", "library"), [("ds_status", "DeepSpeed ZeRO 3"), ("_is_flat_param", "FSDP")])
def test_a_marked_parameter_is_spread(mark: str, library: str) -> None:
    model = net()
    setattr(model[0].bias, mark, True)  # type: ignore[index]
    assert sharded_by(model, None) == library


@pytest.mark.filterwarnings("ignore")
def test_a_real_dtensor_is_spread() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, mesh = net(), dist.init_device_mesh("cpu", (1,))
        model[0].weight = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh))  # type: ignore[index]
        assert sharded_by(model, None) == "DTensor"
    finally:
        dist.destroy_process_group()


def test_a_wrapped_model_is_known_by_its_class() -> None:
    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net()

    assert sharded_by(FullyShardedDataParallel(), None) == "FSDP"
