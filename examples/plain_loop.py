"""The callbacks in a training loop of one's own: `TrainingLoop` fires a Trainer's events.

python examples/plain_loop.py [OUTPUT_DIR]
"""

import sys
from types import SimpleNamespace

import torch
from torch import nn
from transformers import TrainerCallback

from forgather_mem import TrainingLoop, load_callbacks
from forgather_mem.callbacks import ProgressCallback, TBLogger

EPOCHS, STEPS, ACCUMULATION, BATCH_SIZE = 3, 4, 2, 16


class GoodEnough(TrainerCallback):
    """Anybody's callback works, and may ask to stop."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        control.should_training_stop = metrics["eval_loss"] < 0.9


def main(output_dir):
    torch.manual_seed(0)
    rows = torch.randn(EPOCHS, STEPS, ACCUMULATION, BATCH_SIZE, 8)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loop = TrainingLoop(
        model,
        optimizer,
        args=SimpleNamespace(output_dir=output_dir),
        callbacks=[*load_callbacks("callbacks/memory.yaml"), TBLogger(name="plain loop"), ProgressCallback()],
    )
    loop.add_callback(GoodEnough)
    with loop.train():
        for epoch in range(EPOCHS):
            with loop.epoch(num_steps=STEPS):
                for step in range(STEPS):
                    with loop.step():
                        for batch in rows[epoch, step]:
                            with loop.substep():
                                loss = nn.functional.mse_loss(model(batch), batch) / ACCUMULATION
                                loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    loop.log({"loss": loss.item() * ACCUMULATION})
            with loop.evaluation() as metrics, torch.no_grad():
                metrics["eval_loss"] = nn.functional.mse_loss(model(rows[0, 0, 0]), rows[0, 0, 0]).item()
            with loop.saving():
                torch.save(model.state_dict(), f"{output_dir}/model.pt")
            if loop.should_stop:
                break
    print(f"{loop.state.global_step} steps, {loop.state.epoch:g} epochs")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/plain_loop")
