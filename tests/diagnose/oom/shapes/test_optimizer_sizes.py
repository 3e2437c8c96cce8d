"""Sizes of states, compared with those of real optimizers where they are installed."""

from types import SimpleNamespace

import torch
from transformers.optimization import Adafactor

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.diagnose.oom.shapes.optimizer_sizes import Trained, passing_bytes, states_of
from forgather_mem.units import GIB
from tests.diagnose.oom.failures import failure_of


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(500, 64)
        self.inner = torch.nn.Linear(64, 128)
        self.head = torch.nn.Linear(128, 500, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.inner(self.embed(ids)))
        return result


def kept_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.numel() * value.element_size() for value in states if torch.is_tensor(value) and value.dim())


def stepped(model: Net, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model(torch.arange(8)).sum().backward()
    optimizer.step()
    return optimizer


def test_states_are_as_large_as_those_of_real_optimizers() -> None:
    model = Net()
    found = settings_of(SimpleNamespace(optim="adamw_torch"), model)
    assert found.state_of("adamw_torch") == kept_bytes(stepped(model, torch.optim.AdamW(model.parameters())))
    adafactor = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=1e-3)
    assert found.state_of("adafactor") == kept_bytes(stepped(model, adafactor))


def test_eight_and_four_bits_are_not_taken_for_full_adam() -> None:
    found = settings_of(SimpleNamespace(optim="adamw_torch_8bit"), Net())
    full, eight, four = (found.state_of(f"adamw_torch{bits}") for bits in ("", "_8bit", "_4bit"))
    assert full is not None
    assert eight is not None
    assert four is not None
    # The head's 64,000 numbers, the embedding's 32,000 and the layer's 8,192 are quantized, its bias of 128 is not
    assert eight == 2 * (104_192 + 104_192 // 256 * 4) + 2 * 4 * 128
    assert four == 2 * (104_192 // 2 + 104_192 // 128 * 4) + 2 * 4 * 128
    assert found.state_of("adamw_bnb_8bit") == 2 * 4 * (32_000 + 128) + 2 * (72_192 + 72_192 // 256 * 4)


def test_only_smaller_states_are_advised() -> None:
    tensors = [Trained((4096, 4096), 4)] * 8
    numbers = sum(tensor.numbers for tensor in tensors)
    settings = RunSettings(
        arguments={"optim": "adamw_torch_4bit"}, trained_numbers=numbers, trained_bytes=4 * numbers,
        largest_trained=4096**2, state_bytes=states_of(tensors),
    )  # fmt: skip
    failure = failure_of(where="device", phase="optimizer", step=1)
    optims = [change.set["optim"] for change in advise(failure, settings).changes if "optim" in change.set]
    assert optims == ["adafactor", "sgd"]


def test_all_tensors_at_once_take_a_copy_of_all_on_a_device_and_fused_takes_none() -> None:
    assert passing_bytes("adamw_torch", "device", 4 * GIB, 10) == 4 * GIB
    assert passing_bytes("adamw_torch", "host", 4 * GIB, 10) == 0
    assert passing_bytes("adamw_torch_fused", "device", 4 * GIB, 10) == 0
    assert passing_bytes("adafactor", "device", 4 * GIB, 10) == 120
