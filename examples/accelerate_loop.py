"""A loop with Accelerate: `TrainingLoop` gets what `prepare` gives, and `accumulate` marks the steps.

accelerate launch examples/accelerate_loop.py [OUTPUT_DIR]      or, on one process, with python
"""

import sys
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from torch import nn

from forgather_mem import TrainingLoop, load_callbacks
from forgather_mem.callbacks import GradLogger, JsonMemoryLogger, ProgressCallback

EPOCHS, ACCUMULATION = 2, 2


def batches_of(loader, number):
    """The loader's batches, so many at a time: those of one optimizer step."""
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == number:
            yield group
            group = []


def main(output_dir):
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=16)
    prepared, optimizer, rows = accelerator.prepare(model, optimizer, rows)
    loop = TrainingLoop(
        prepared,
        optimizer.optimizer,  # what accelerate has wrapped takes hooks
        args=SimpleNamespace(
            output_dir=output_dir,
            process_index=accelerator.process_index,
            world_size=accelerator.num_processes,
            max_grad_norm=None,
        ),
        callbacks=[
            *load_callbacks("callbacks/memory.yaml"),
            JsonMemoryLogger(),
            GradLogger(log_frequency=2),
            ProgressCallback(),
        ],
    )
    with loop.train():
        for _ in range(EPOCHS):
            with loop.epoch(num_steps=len(rows) // ACCUMULATION):
                for group in batches_of(rows, ACCUMULATION):
                    with loop.step():
                        for batch in group:
                            with loop.substep(), accelerator.accumulate(prepared):
                                loss = nn.functional.mse_loss(prepared(batch), batch)
                                accelerator.backward(loss)
                                optimizer.step()  # steps at the last batch of the group only
                                optimizer.zero_grad()
                    loop.log({"loss": loss.item()})
    accelerator.print(f"{loop.state.global_step} optimizer steps on {accelerator.num_processes} processes")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/accelerate_loop")
