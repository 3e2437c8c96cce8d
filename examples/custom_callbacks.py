"""Callbacks of one's own in a template: it names them, and `allow` lets it.

    python examples/custom_callbacks.py [OUTPUT_DIR]

The template is custom_callbacks.yaml beside this file, the callbacks are in my_module.
"""

import importlib.util
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem import load_callbacks
from forgather_mem.demo import StdlibText


def main(output_dir):
    callbacks = load_callbacks(
        "custom_callbacks.yaml",
        searchpath=Path(__file__).parent,
        allow=["my_module"],
        output_dir=output_dir,
        wandb=importlib.util.find_spec("wandb") is not None,
    )
    print("callbacks:", *(type(callback).__name__ for callback in callbacks))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    arguments = TrainingArguments(
        output_dir,
        per_device_train_batch_size=4,
        num_train_epochs=4,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes)),
        arguments,
        train_dataset=StdlibText(num_bytes=1024, block_size=64),
        eval_dataset=StdlibText(skip_bytes=1024, num_bytes=512, block_size=64),
        callbacks=callbacks,
    )
    trainer.train()
    print(f"ended after step {trainer.state.global_step} of {trainer.state.max_steps}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/custom")
