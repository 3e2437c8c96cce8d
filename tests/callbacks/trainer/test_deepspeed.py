"""DeepSpeed, with an engine of the same shape: accelerate calls its optimizer step inside `backward`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from torch import nn
from transformers import Trainer, TrainerCallback

from forgather_mem import Every, Rule
from forgather_mem.callbacks import MemoryCallback, OOMReporter
from forgather_mem.page.report_dict import Report
from forgather_mem.probes import PhaseProbe
from forgather_mem.probes.tensors import tensor_bytes
from forgather_mem.sinks import Capture
from forgather_mem.units import MIB
from tests.memory import spike
from tests.training import make_trainer, needs_fully_shard

FLOAT = 4


class Engine(nn.Module):
    """As `deepspeed.runtime.engine.DeepSpeedEngine`: the model, its backward pass and its optimizer's step."""

    def __init__(self, trainer: Trainer, in_step: Callable[[], object]) -> None:
        super().__init__()
        self.module = trainer.model
        self._trainer = [trainer]
        self._in_step = in_step

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.is_boundary = is_boundary

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self._in_step()
        optimizer = self._trainer[0].optimizer.optimizer
        optimizer.step()
        optimizer.zero_grad()


class AcceleratedByDeepSpeed(Accelerator):
    """The branch that `Accelerator.backward` takes then."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self.deepspeed_engine_wrapped.backward(loss, sync_gradients=self.sync_gradients, **kwargs)


def by_deepspeed(folder: Path, callbacks: list[Any], in_step: Callable[[], object]) -> Trainer:
    class Prepares(TrainerCallback):
        """`Accelerator.prepare` makes the engine anew for each training."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            trainer.accelerator.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(Engine(trainer, in_step))

    trainer = make_trainer(folder, [Prepares(), *callbacks], max_steps=3)
    trainer.accelerator.__class__ = AcceleratedByDeepSpeed
    return trainer


@pytest.mark.fresh
def test_the_engines_step_is_the_optimizers_and_no_part_of_the_backward_pass(tmp_path: Path) -> None:
    capture = Capture()
    probe = PhaseProbe(host_mark=True, budget_frac=1)
    watching = MemoryCallback([Rule(Every(steps=1), [probe])], [capture], strict=True)
    trainer = by_deepspeed(tmp_path, [watching], lambda: spike(64))
    trainer.train()
    engine = trainer.accelerator.deepspeed_engine_wrapped.engine
    for sample in [sample for sample in capture.samples if sample.event == "step_end"]:
        optimizer, backward = (sample.values[f"phase/host/{name}_peak_bytes"] for name in ("optimizer", "backward"))
        assert optimizer - backward > 50 * MIB
    assert "step" not in vars(engine)


@pytest.mark.slow
def test_running_out_of_memory_in_the_engines_step_is_told_as_the_optimizers(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    trainer = by_deepspeed(tmp_path, [reporter], lambda: torch.empty(2**50, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        trainer.train()
    report = Report.of(reporter.summary)
    assert report["oom"]["phase"] == "optimizer"
    assert not any("batch_size" in change["text"] for change in report["advice"])


def test_by_its_files_alone_an_engines_step_inside_a_backward_pass_is_the_optimizers(tmp_path: Path) -> None:
    from forgather_mem.diagnose.oom.place import failure_at
    from tests.diagnose.oom.failures import FOUND

    names: dict[str, Any] = {}
    for file, text in (
        ("deepspeed/runtime/engine.py", "def step():\n    raise MemoryError\n"),
        ("accelerate/accelerator.py", "def backward():\n    step()\n"),
    ):
        exec(compile(text, str(tmp_path / file), "exec"), names)
    with pytest.raises(MemoryError) as error:
        names["backward"]()
    assert failure_at(error.value, FOUND).phase == "optimizer"


def partitioned(model: nn.Module, parts: int) -> nn.Module:
    """As ZeRO-3 leaves parameters between the passes: placeholders of 0 elements beside this rank's padded part."""
    for parameter in model.parameters():
        parameter.ds_numel, parameter.ds_shape = parameter.numel(), parameter.shape
        parameter.ds_tensor = torch.zeros(-(-parameter.numel() // parts))
        parameter.data = torch.empty(0)
    return model


def test_of_partitioned_parameters_this_ranks_part_counts() -> None:
    model = partitioned(nn.Linear(30, 10), parts=4)
    assert tensor_bytes(model)["tensors/parameters_bytes"] == (75 + 3) * FLOAT


def test_of_partitioned_parameters_that_are_on_a_disk_nothing_is_claimed() -> None:
    model = partitioned(nn.Linear(30, 10), parts=4)
    for parameter in model.parameters():
        parameter.ds_tensor.data = torch.empty(0)
    assert "tensors/parameters_bytes" not in tensor_bytes(model)


@needs_fully_shard  # on the host, torch 2.6 can't gather
def test_fully_sharded_models_have_the_bytes_of_this_rank(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(30, 10), nn.Linear(10, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        numbers = 30 * 10 + 10 + 10 + 1
        sizes = tensor_bytes(model, optimizer)
        assert sizes["tensors/parameters_bytes"] == sizes["tensors/gradients_bytes"] == numbers * FLOAT
        assert sizes["tensors/optimizer_bytes"] == 2 * numbers * FLOAT + 4 * FLOAT  # and a count of steps for each
    finally:
        torch.distributed.destroy_process_group()
