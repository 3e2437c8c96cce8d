"""Run by test_ranks.py on each of two ranks: trains for real, and prints the most bytes of tensors.

With the arguments of a Trainer, or with the name of a way to spread the model of a plain loop.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from tests.planning.compared import mean_square, plain_step
from tests.planning.counted import Counted
from tests.training import VOCABULARY, Tokens, make_trainer


def trainer_of(folder: Path, **arguments: Any) -> Trainer:
    """Its gradients are a good part of the peak."""
    trainer = make_trainer(folder, max_steps=3, **arguments)
    trainer.model = trainer.model_wrapped = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2
        )
    )
    trainer.compute_metrics = lambda _: {"seen": 1.0}
    trainer.eval_dataset = Tokens(203, 64) if "eval_strategy" in arguments else None
    return trainer


class Wide(nn.Module):
    """Layers whose weights are most of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(256, 255), nn.ReLU(), nn.Linear(255, 256)) for _ in range(4))
        )
        self.head = nn.Linear(256, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(rows))


def loop_of(way: str) -> tuple[Callable[[torch.Tensor], None], nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """What `forgather_mem.plan` is given: a step, its model, its optimizer and a batch. There is a group of two."""
    model: nn.Module = Wide()
    mesh = init_device_mesh("cpu", (2,))
    if way == "fsdp":
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, gradient_as_bucket_view=way == "ddp views", bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters())
    return plain_step(model, optimizer, mean_square), model, optimizer, torch.zeros(16, 256)


def shard_on_the_host(trainer: Trainer) -> None:
    """Let accelerate do on the host what it does with ranks on accelerators alone."""
    plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
    AcceleratorState._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
    trainer.is_fsdp_enabled = True


def trained(asked: str | dict[str, Any]) -> int:
    """The most bytes of a real training."""
    if isinstance(asked, dict):
        trainer = trainer_of(Path.cwd(), ddp_backend="gloo", **asked)  # not MPI, where torch has it
        if trainer.args.fsdp:
            shard_on_the_host(trainer)
        with Counted() as counted:
            trainer.train()
        return counted.peak_bytes
    distributed.init_process_group("gloo")
    step, _, _, batch = loop_of(asked)
    with Counted() as counted:
        for _ in range(3):
            step(batch)
    return counted.peak_bytes


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("PEAK", trained(json.loads(sys.argv[1])))
