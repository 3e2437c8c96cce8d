"""Measures the noise of the gradients during a training: its callback remembers the gradient of each step."""

import resource
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

MEMORY = 260
BATCH = 4
ACCUM = 1
LENGTH = 32
STEPS = 40


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class GradientNoise(TrainerCallback):
    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        parts = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(parts))

    def on_train_end(self, args, state, control, **kwargs):
        mean = sum(self.gradients) / len(self.gradients)
        noise = sum((one - mean).square().sum() for one in self.gradients) / len(self.gradients)
        print(f"noise scale {noise / mean.square().sum():.1f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=2_000, n_positions=64, n_embd=192, n_layer=4, n_head=4))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(2_000, (200, LENGTH))]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[GradientNoise()])
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
