"""A summary model is evaluated by beam search; its training needs far less."""

import resource
from pathlib import Path

import torch
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments

MEMORY = 230
BATCH = 4
ACCUM = 1
EVAL_BATCH = 16
BEAMS = 8
GENERATED = 48
SOURCE = 400
VOCABULARY = 2_000


def small_machine(room):
    """Simulates a small machine: this process may map `room` MiB of data more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + room * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def make_model():
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=512,
        forced_eos_token_id=None,
    )
    return BartForConditionalGeneration(config)


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def metrics(found):
    return {"words": float((found.predictions > 3).mean())}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = torch.randint(4, VOCABULARY, (96, SOURCE))
    rows = [{"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text[:40]} for text in texts]
    arguments = Seq2SeqTrainingArguments(
        "out",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUM,
        per_device_eval_batch_size=EVAL_BATCH,
        predict_with_generate=True,
        generation_num_beams=BEAMS,
        generation_max_length=GENERATED,
        eval_strategy="steps",
        eval_steps=15,
        max_steps=30,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        make_model(),
        arguments,
        train_dataset=rows[:64],
        eval_dataset=rows[64:],
        data_collator=collate,
        compute_metrics=metrics,
    )
    small_machine(MEMORY)
    trainer.train()
    print("done")


if __name__ == "__main__":
    main()
