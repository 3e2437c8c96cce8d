"""The cache-clearing callback in real trainings: when it clears, what it says, what it leaves alone."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem.callbacks import ClearCacheCallback, MemoryCallback
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.triggers import Above
from forgather_mem.units import MIB
from tests.fragments import Fragments, needs_glibc
from tests.memory import status_bytes
from tests.simulated_device import SimulatedDevice, simulated_device
from tests.training import make_trainer


class Uses(TrainerCallback):
    """The device's memory of each step: allocated and given back, so that it stays reserved."""

    def __init__(self, device: SimulatedDevice, *mib: float) -> None:
        self.device, self.mib = device, mib

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.device.spike(self.mib[state.global_step % len(self.mib)])


def clears_in(capture: Capture) -> list[int]:
    return [sample.step for sample in capture.samples if "cache/clears" in sample.values]


def train(folder: Path, device_mib: tuple[float, ...], callback: ClearCacheCallback, **settings: Any) -> list[int]:
    """After which steps a training on a simulated device clears."""
    capture = Capture()
    trainer = make_trainer(folder, [], rows=256, **settings)
    with pytest.MonkeyPatch.context() as monkeypatch, simulated_device(monkeypatch) as device:
        for each in (Uses(device, *device_mib), MemoryCallback([], [capture]), callback):
            trainer.add_callback(each)
        trainer.train()
    return clears_in(capture)


@pytest.mark.slow
def test_every_nth_optimizer_step_whatever_the_accumulation(tmp_path: Path) -> None:
    callback = ClearCacheCallback("step", 2)
    assert train(tmp_path, (100,), callback, gradient_accumulation_steps=4, max_steps=5) == [2, 4]


@pytest.mark.slow
def test_the_collection_before_a_clear_is_booked_as_one_also_without_a_device(tmp_path: Path) -> None:
    callback = ClearCacheCallback("step", 2, garbage_collection=True)
    make_trainer(tmp_path, [callback], max_steps=4).train()
    assert [(row["what"], row["calls"]) for row in callback.summary.ledger] == [("collect", 2)]


@pytest.mark.slow
def test_under_pressure_once_for_each_time_that_the_limit_is_crossed(tmp_path: Path) -> None:
    held = (100, 350, 350, 350, 100, 350)  # MiB live at the end of steps; what is held can't be cleared
    capture = Capture()
    trainer = make_trainer(tmp_path, [], rows=64)

    class Holds(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            device.reserved = 0
            device.hold(held[state.global_step])

    with pytest.MonkeyPatch.context() as monkeypatch, simulated_device(monkeypatch) as device:
        pressure = Above("device/reserved_bytes", "300MiB", rearm="200MiB")
        for callback in (Holds(), MemoryCallback([], [capture]), ClearCacheCallback(when=pressure)):
            trainer.add_callback(callback)
        trainer.train()
    assert clears_in(capture) == [2, 6]


@pytest.mark.slow
def test_at_the_moment_of_a_clear_no_activation_is_alive(tmp_path: Path) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    trainer = make_trainer(tmp_path, [], gradient_accumulation_steps=2, max_steps=3)
    hook = trainer.model.lm_head.register_forward_hook(lambda module, inputs, output: made.append(weakref.ref(output)))
    with pytest.MonkeyPatch.context() as monkeypatch, simulated_device(monkeypatch) as device:
        clear = device.empty_cache

        def looking() -> None:
            alive.append(any(activation() is not None for activation in made))
            clear()

        monkeypatch.setattr(torch.cuda, "empty_cache", looking)
        trainer.add_callback(ClearCacheCallback("step", 1))
        trainer.train()
    hook.remove()
    assert len(made) == 6
    assert alive == [False, False, False]


def test_the_trainers_own_clears_are_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(tmp_path, [ClearCacheCallback("step", 2)], torch_empty_cache_steps=2).train()
    warnings = [record.getMessage() for record in caplog.records if "torch_empty_cache_steps=2" in record.getMessage()]
    assert len(warnings) == 1
    assert "unset it" in warnings[0]
    caplog.clear()
    make_trainer(tmp_path, [ClearCacheCallback("step", 2)], max_steps=1).train()
    assert not [record for record in caplog.records if record.name.startswith("forgather_mem")]


@pytest.mark.slow
@needs_glibc
def test_host_memory_goes_back_to_the_system_without_an_accelerator(tmp_path: Path) -> None:
    fragments, resident = Fragments(), {}

    class Leaves(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                fragments.leave_holes(64)
                resident["before"] = status_bytes("VmRSS")
            if state.global_step == 4:
                resident["after"] = status_bytes("VmRSS")

    callback = ClearCacheCallback("step", 4, trim_host=True)
    make_trainer(tmp_path, [Leaves(), callback], rows=64).train()
    fragments.close()
    (row,) = callback.summary.ledger
    assert (row["what"], row["calls"]) == ("trim", 1)
    assert row["freed_bytes"] > 50 * MIB
    assert resident["before"] - resident["after"] > 40 * MIB


@pytest.mark.slow
def test_an_adaptive_schedule_that_does_not_pay_becomes_rare_in_a_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = train(tmp_path, (500,), ClearCacheCallback("step", 1, adaptive=True), max_steps=40)
    assert done == [1, 2, 4, 8, 16, 32]
    assert sum("ClearCache does not pay" in record.message for record in caplog.records) == 1
