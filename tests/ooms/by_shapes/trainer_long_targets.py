"""Summaries with an encoder and a decoder in a Trainer: short inputs, targets of very different lengths."""

import resource
from pathlib import Path

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

MEMORY = 230
BATCH = 8
ACCUM = 1
MOST_TARGET = 100_000
VOCAB = 6_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class Padding(DataCollatorForSeq2Seq):
    """Without a tokenizer."""

    def __call__(self, samples, return_tensors=None):
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
        labels = [torch.tensor(sample["labels"])[:MOST_TARGET] for sample in samples]
        return {"input_ids": ids, "labels": pad(labels, batch_first=True, padding_value=-100)}


def texts(num):
    lengths = [16 + 8 * (row % 5) for row in range(num)]
    lengths[num // 2] = 700
    return [{"input_ids": list(range(2, 34)), "labels": [7] * length} for length in lengths]


class InOrder(Seq2SeqTrainer):
    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = T5Config(
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    arguments = Seq2SeqTrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    model = T5ForConditionalGeneration(config)
    trainer = InOrder(model, arguments, train_dataset=texts(240), data_collator=Padding(None))
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
