"""Eight tokens are added to a language model whose embeddings stay frozen."""

import resource
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

MEMORY = 345
VOCABULARY = 100_000
HIDDEN = 320
BATCH = 2
ACCUM = 1
LENGTH = 32
STEPS = 20
DTYPE = torch.float32


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def make_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=640,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(DTYPE)
    model.resize_token_embeddings(VOCABULARY + 8)
    model.get_input_embeddings().weight.requires_grad_(False)
    return model


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small_machine(MEMORY)
    model = make_model()
    ids = torch.randint(VOCABULARY, (64, LENGTH))
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    Trainer(model, arguments, train_dataset=rows).train()
    print("done")


if __name__ == "__main__":
    main()
