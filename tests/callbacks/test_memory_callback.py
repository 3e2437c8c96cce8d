"""What `MemoryCallback()` sees when it watches, and that it changes nothing; on a simulated device too."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Trainer

from forgather_mem import load_callbacks
from forgather_mem.callbacks import InfoCallback, MemoryCallback, ProgressCallback
from forgather_mem.engine.run_of import run_of
from forgather_mem.probes import PhaseProbe
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from forgather_mem.trackers import EpochMemoryMonitor
from forgather_mem.units import MIB
from tests.memory import spike, status_bytes
from tests.reporting.report_fixtures import built
from tests.simulated_device import SimulatedDevice
from tests.training import OLD_TORCH, make_trainer


class Training:
    """The events and phases of a training on a simulated device, one after the other."""

    def __init__(self, callback: MemoryCallback, device: SimulatedDevice, folder: Path) -> None:
        self.callback, self.device = callback, device
        self.args = SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(global_step=0, epoch=0.0)
        self.fire("train_begin")

    def fire(self, event: str) -> None:
        getattr(self.callback, f"on_{event}")(self.args, self.state, None)

    def phase(self, name: str, spike_mib: float) -> None:
        phases = run_of(self.state).phases
        phases.enter(name)
        self.device.spike(spike_mib)
        phases.leave(name)

    def step(self, **spikes_mib: float) -> None:
        for name, mib in spikes_mib.items():
            self.phase(name, mib)
        self.state.global_step += 1
        self.fire("step_end")


def phase_values(capture: Capture) -> dict[tuple[str, int], dict[str, float]]:
    """(event, step) to phase and MiB, on the device."""
    told = {
        (sample.event, sample.step): {
            name.split("/")[2].removesuffix("_peak_bytes"): value / MIB
            for name, value in sample.values.items()
            if name.startswith("phase/device/")
        }
        for sample in capture.samples
    }
    return {key: phases for key, phases in told.items() if phases}


def test_watching_a_device_resets_no_peak_and_tells_where_the_running_maximum_rose(
    tmp_path: Path, device: SimulatedDevice
) -> None:
    capture = Capture()
    callback = MemoryCallback(sinks=[capture], strict=True)
    for work in (work for rule in callback.rules for work in rule.do if isinstance(work, PhaseProbe)):
        work.budget_frac = 1.0  # steps of no length at all
    device.hold(100)
    training = Training(callback, device, tmp_path)
    training.step(forward=50, backward=20)
    training.step(forward=40, backward=60)
    training.phase("evaluate", 10)
    training.fire("evaluate")
    training.phase("save", 80)
    training.fire("save")
    training.step(forward=90)
    training.phase("save", 100)
    training.fire("train_end")
    assert device.peak == 200, "nobody has reset it"
    assert phase_values(capture) == {
        ("step_end", 1): {"forward": 150},
        ("step_end", 2): {"backward": 160},
        ("save", 2): {"save": 180},
        ("step_end", 3): {"forward": 190},
        ("train_end", 3): {"save": 200},
    }
    report = built(callback.summary)
    assert report["device"][0]["peak_allocated_bytes"] == 200 * MIB
    assert report["peaks"][0]["where"] == "host"
    highest = next(peak for peak in report["peaks"] if peak["where"] == "gpu0")
    assert highest == {"where": "gpu0", "bytes": 200 * MIB, "step": 3, "phase": "save"}


def test_watching_leaves_the_kernels_mark_alone(tmp_path: Path) -> None:
    spike(64)
    before = status_bytes("VmHWM")
    trainer = make_trainer(tmp_path, [MemoryCallback(strict=True)])
    trainer.train()
    assert status_bytes("VmHWM") >= before - MIB  # the kernel counts pages of each CPU by and by


def test_watching_writes_tensorboard_and_json_lines(tmp_path: Path) -> None:
    make_trainer(tmp_path, [MemoryCallback(strict=True)], max_steps=2).train()
    names = {path.name.split(".")[0] for path in tmp_path.rglob("*.*") if path.is_file()}
    assert names >= {"events", "memory"}


def test_only_what_needs_phases_has_the_trainer_wrapped_for_them(tmp_path: Path) -> None:
    class Monitor:
        def on_epoch_start(self) -> None: ...
        def on_batch_end(self, batch_idx: int, loss: Any = None) -> None: ...
        def on_epoch_end(self) -> None: ...

    assert MemoryCallback().needs_phases
    assert not MemoryCallback(monitor=Monitor()).needs_phases


@pytest.mark.slow
@pytest.mark.parametrize("is_main", [True, False])
def test_who_prints_for_all_is_the_trainers_to_say(
    tmp_path: Path, is_main: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    class Says(Trainer):
        def is_world_process_zero(self) -> bool:
            return is_main

    callbacks = [*load_callbacks("callbacks/memory_debug.yaml", every_steps=1), InfoCallback(), ProgressCallback()]
    make_trainer(tmp_path, callbacks, trainer_class=Says).train()
    printed = "".join(capfd.readouterr())
    for line in ("Memory monitoring enabled", "Epoch end: ", "training starts", "step 2/6"):
        assert (line in printed) == is_main, line


@pytest.mark.soak
@pytest.mark.skipif(OLD_TORCH, reason="torch 2.6 can't compile the models of transformers 5")
def test_phases_are_told_under_torch_compile_and_nothing_more_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "eager")  # transformers 4 sets it, for all trainings after this
    frames = []
    capture = Capture()
    phases = PhaseProbe(host_mark=True, budget_frac=1)
    watching = MemoryCallback([Rule(Every(steps=1), [phases])], [capture], strict=True)
    for name, callbacks in (("alone", []), ("watched", [watching])):
        reset()
        counters.clear()
        settings = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 3}
        make_trainer(tmp_path / name, callbacks, **settings).train()
        frames.append((dict(counters["frames"]), len(counters["graph_break"])))
    assert frames[0] == frames[1]
    assert frames[0][0]["ok"] >= 1
    for phase in ("data", "forward", "backward", "optimizer"):
        assert [step for step, _ in capture.series(f"phase/host/{phase}_peak_bytes")] == [1, 2, 3]


@pytest.mark.parametrize("monitor", [5, EpochMemoryMonitor])
def test_a_monitor_without_the_three_methods_is_refused(monitor: Any) -> None:
    with pytest.raises(ValueError, match=r"monitor=.*give an EpochMemoryMonitor\(\), or an object with its methods"):
        MemoryCallback(monitor=monitor)
