"""Preference training in a Trainer: policy and reference score chosen and rejected answers, in full, over all words."""

import resource
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

MEMORY = 900
BATCH = 4
ACCUM = 1
MAX_LENGTH = 1024
WORDS = 8000
CHECKPOINTING = False
DTYPE = torch.float32
STEPS = 10


def small_machine(mib):
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + mib * 2**20, resource.RLIM_INFINITY))


def tiny():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=2048,
        )
    ).to(DTYPE)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = min(90 + 7 * (index % 9) if index != 29 else 900, MAX_LENGTH)
        return {
            name: torch.randint(WORDS, (length - shift,), generator=draw)
            for name, shift in (("chosen", 0), ("rejected", 9))
        }


def collate(rows):
    both = [row["chosen"] for row in rows] + [row["rejected"] for row in rows]
    return {"ids": torch.nn.utils.rnn.pad_sequence(both, batch_first=True)}


def answers(model, ids):
    logits = model(input_ids=ids).logits[:, :-1].float()
    every = logits.log_softmax(-1)
    return every.gather(2, ids[:, 1:, None]).squeeze(2).sum(1)


class Preference(Trainer):
    reference = None

    def _get_train_sampler(self, *unused):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **more):
        policy = answers(model, inputs["ids"])
        with torch.no_grad():
            reference = answers(self.reference, inputs["ids"])
        chosen, rejected = (policy - reference).chunk(2)
        loss = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        return (loss, {}) if return_outputs else loss


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        max_steps=STEPS,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        gradient_checkpointing=CHECKPOINTING,
    )
    trainer = Preference(tiny(), arguments, train_dataset=Pairs(), data_collator=collate)
    trainer.reference = tiny().eval()
    small_machine(MEMORY)
    trainer.train()
    print("finished")


if __name__ == "__main__":
    main()
