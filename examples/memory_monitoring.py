"""Every tracker once, on a small model in plain PyTorch.

    python examples/memory_monitoring.py

"MB" in the lines means MiB (2**20 bytes). With a CUDA device the lines begin with the GPU's part.
"""

import torch
from torch import nn

from forgather_mem import (
    BatchMemoryProfiler,
    EpochMemoryMonitor,
    MemoryMonitor,
    MemoryTracker,
    monitor_memory,
    track_memory,
)

BATCHES, BATCH_SIZE, WIDTH = 8, 256, 512
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@monitor_memory("training epoch")
def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor, memory: EpochMemoryMonitor):
    memory.on_epoch_start()
    for batch_idx, batch in enumerate(data.split(BATCH_SIZE)):
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        memory.on_batch_end(batch_idx, loss)
    memory.on_epoch_end()


def profile_batches(model: nn.Module, data: torch.Tensor) -> BatchMemoryProfiler:
    profiler = BatchMemoryProfiler(enabled=True)
    for batch in data.split(BATCH_SIZE)[:3]:
        profiler.checkpoint("data_loaded")
        loss = nn.functional.mse_loss(model(batch), batch)
        profiler.checkpoint("forward")
        loss.backward()
        profiler.checkpoint("backward")
        model.zero_grad()
        del loss
        profiler.checkpoint("cleared")
    return profiler


def main() -> None:
    torch.manual_seed(0)
    tracker = MemoryTracker()
    tracker.record("initialization")

    with track_memory("data loading"):
        data = torch.randn(BATCHES * BATCH_SIZE, WIDTH, device=DEVICE)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    MemoryMonitor.print_memory_usage("After model creation: ")
    print(f"CPU memory alone: {MemoryMonitor.get_cpu_memory_mb():.0f} MB\n")
    tracker.record("model_created")

    memory = EpochMemoryMonitor(enabled=True, verbose_batches=5)
    for _ in range(2):
        train_epoch(model, optimizer, data, memory)
        print()
    tracker.record("after_training")

    profile_batches(model, data).print_summary()
    print()
    tracker.print_summary()
    peak = tracker.peak()
    if peak is not None:
        print(f"Memory was highest on the way from {peak.since} to {peak.name}.")


if __name__ == "__main__":
    main()
