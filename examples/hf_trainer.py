"""`transformers.Trainer` with callbacks from two templates, one more by hand, and a report at the end.

python examples/hf_trainer.py [OUTPUT_DIR]
"""

import sys

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem import attach, load_callbacks
from forgather_mem.callbacks import GradLogger
from forgather_mem.demo import StdlibText


def make_trainer(output_dir):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    arguments = TrainingArguments(
        output_dir,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=12,
        logging_steps=4,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=6,
        report_to=[],
        disable_tqdm=True,
    )
    return Trainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes)),
        arguments,
        train_dataset=StdlibText(num_bytes=4096, block_size=64),
        eval_dataset=StdlibText(skip_bytes=4096, num_bytes=512, block_size=64),
        callbacks=[
            *load_callbacks("callbacks/memory.yaml", collect_freq_epoch=1, every_steps=2),
            *load_callbacks("callbacks/loggers.yaml", experiment_name="hf_trainer"),
        ],
    )


def main(output_dir):
    trainer = make_trainer(output_dir)
    trainer.add_callback(GradLogger(log_frequency=4))
    watching = attach(trainer)  # changes nothing, and knows at the end where the memory went
    trainer.train()
    print(watching.report())
    print(f"all curves: tensorboard --logdir {output_dir}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/hf_trainer")
