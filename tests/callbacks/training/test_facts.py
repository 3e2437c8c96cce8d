"""Facts before the first step, of models and data whose numbers are known; what is printed is in `test_info`."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.utils.data import DataLoader, IterableDataset

from forgather_mem.callbacks.training.info import arguments, is_sharded, markdown, settings, training_facts
from forgather_mem.telemetry.records import Moment


def moment(args: Any = None, state: Any = None, world_size: int = 1, **objects: Any) -> Moment:
    run: Any = SimpleNamespace(world_size=world_size)
    return Moment("train_begin", 0, None, args, state, None, objects, run)


def test_a_parameter_that_zero_3_keeps_elsewhere_counts_with_its_whole_size() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.ds_numel = 7_000_000  # as DeepSpeed marks it
    assert training_facts(moment(model=model))["model"]["parameters"] == "7,000,000"
    model.weight.requires_grad_(False)
    model.bias = torch.nn.Parameter(torch.zeros(256))
    assert training_facts(moment(model=model))["memory"] == {"parameters": "1.0 KiB", "gradients": "1.0 KiB"}


def test_the_rows_of_a_step_are_those_of_all_ranks_and_micro_batches() -> None:
    args = SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=3, learning_rate=1e-4)
    state = SimpleNamespace(max_steps=1000, global_step=200, train_batch_size=2)
    facts = training_facts(moment(args, state, world_size=8))["training"]
    assert facts["rows a step"] == "48 (2 x 3 micro-batches x 8 ranks)", "the trainer has made the batch smaller"
    assert (facts["max_steps"], facts["learning_rate"]) == ("1,000", "0.0001")


def test_a_stream_has_no_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(3))

    rows, stream = DataLoader(torch.zeros(10, 2), batch_size=4), DataLoader(Stream())
    facts = training_facts(moment(train_dataloader=stream, eval_dataloader=rows))
    assert facts["data"] == {"train workers": "0", "eval rows": "10", "eval batches": "3", "eval workers": "0"}


def test_what_a_trainer_does_not_have_is_left_out() -> None:
    assert set(training_facts(moment())) == {"devices"}
    assert settings(None) == {}
    assert arguments(None) == {}


def test_settings_are_plain_values() -> None:
    args = SimpleNamespace(optim=SimpleNamespace(value="adamw_torch"), bf16=True, seed=7, warmup_steps=[1], other=3)
    assert settings(args) == {"optim": "adamw_torch", "bf16": True, "seed": 7}


def test_arguments_are_those_that_the_trainer_shows() -> None:
    class Args:
        token = "secret"

        def to_dict(self) -> dict[str, object]:
            return {"token": "<TOKEN>"}

    assert arguments(Args()) == {"token": "<TOKEN>"}
    assert arguments(SimpleNamespace(seed=7, _private=3)) == {"seed": 7}


def test_nothing_in_a_value_is_taken_for_markdown() -> None:
    assert markdown({"model": {"class": "A|B\\", "text": "# no head\n| no table |"}}) == (
        "### model\n\n| | |\n|---|---|\n| class | A\\|B\\\\ |\n\n#### text\n\n    # no head\n    | no table |"
    )


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4))


def test_a_model_of_one_process_is_whole() -> None:
    assert not is_sharded(net(), None)
    assert not is_sharded(net(), SimpleNamespace(fsdp=[]))


def test_arguments_and_the_launcher_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_sharded(net(), SimpleNamespace(fsdp=["full_shard"]))
    for value, expected in (("true", True), ("1", True), ("false", False), ("", False)):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", value)
        assert is_sharded(net(), None) is expected


@pytest.mark.parametrize("mark", ["ds_status", "_is_flat_param"])
def test_a_marked_parameter_is_spread(mark: str) -> None:
    model = net()
    setattr(model[0].bias, mark, True)  # type: ignore[index]
    assert is_sharded(model, None)


@pytest.mark.filterwarnings("ignore")
def test_a_real_dtensor_is_spread() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, mesh = net(), dist.init_device_mesh("cpu", (1,))
        model[0].weight = torch.nn.Parameter(distribute_tensor(torch.zeros(4, 4), mesh))  # type: ignore[index]
        assert is_sharded(model, None)
    finally:
        dist.destroy_process_group()


def test_a_wrapped_model_is_known_by_its_class() -> None:
    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net()

    assert is_sharded(FullyShardedDataParallel(), None)
