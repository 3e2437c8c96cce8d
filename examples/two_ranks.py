"""Data-parallel training on two processes: who writes what.

    torchrun --nproc_per_node=2 examples/two_ranks.py [OUTPUT_DIR]

Rank 0 alone writes TensorBoard and prints. Each rank has its own memory lines; rank 0 adds all ranks' smallest and
largest to its page, and waits for nobody. Here the ranks are two processes on the CPU (gloo).
"""

import json
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem.callbacks import JsonMemoryLogger, ProgressCallback, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.demo import StdlibText


def main(output_dir):
    arguments = TrainingArguments(
        output_dir,
        per_device_train_batch_size=4,
        max_steps=8,
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    trainer = Trainer(
        LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **sizes)),
        arguments,
        train_dataset=StdlibText(num_bytes=4096, block_size=64),
        callbacks=[
            TBMemoryLogger(rank_steps=2),
            JsonMemoryLogger(),
            SimpleGarbageCollector(collect_freq_step=4, verbose=True),
            ProgressCallback(),
        ],
    )
    trainer.train()
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        for path in sorted(Path(output_dir).rglob("memory.rank*.jsonl")):
            steps = [json.loads(line).get("step") for line in path.read_text().splitlines()]
            print(f"{path.name}: lines up to step {max(step for step in steps if step is not None)}")
        print(f"TensorBoard runs: {len({path.parent for path in Path(output_dir).rglob('*tfevents*')})}")
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/two_ranks")
