"""Self-play in small: the model is kept apart from its former selves, to which every four steps adds a copy."""

import copy
import random
import resource
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

MEMORY = 330
BATCH = 2
ACCUM = 1
LENGTH = 64
RENEW = 4
KEPT = 8
BETA = 0.001
STEPS = 24
OPTIMIZER = "adamw_torch"


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class SelfPlayTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.past_selves = []

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if self.state.global_step >= RENEW * len(self.past_selves):
            self.past_selves.append(copy.deepcopy(model).eval().requires_grad_(False))
            if len(self.past_selves) > KEPT:
                self.past_selves.pop(0)
        outputs = model(**inputs)
        with torch.no_grad():
            opponent = random.choice(self.past_selves)
            wanted = opponent(input_ids=inputs["input_ids"]).logits.log_softmax(-1)
        distance = torch.nn.functional.kl_div(
            outputs.logits.log_softmax(-1), wanted, log_target=True, reduction="batchmean"
        )
        loss = outputs.loss - BETA * distance
        return (loss, outputs) if return_outputs else loss


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=2_000, n_positions=LENGTH, n_embd=448, n_layer=5, n_head=8)
    model = GPT2LMHeadModel(config)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(2_000, (200, LENGTH))]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        optim=OPTIMIZER,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SelfPlayTrainer(model, arguments, train_dataset=rows)
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
