"""Continues bytes; every now and then a beam search with a growing cache writes samples for the report.

After: https://github.com/huggingface/transformers/issues/35648
"""
import collections
import inspect
import tempfile

import chunk
import colorsys
import pipes
import sndhdr
import torch
import warnings
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

LENGTH = 64
warnings.filterwarnings("ignore", category=DeprecationWarning)


class Corpus(Dataset):
    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (chunk, colorsys, pipes, sndhdr))
        self.codes = torch.tensor([min(ord(c), 127) for c in text])

    def __len__(self):
        return len(self.codes) - LENGTH

    def __getitem__(self, index):
        row = self.codes[index:index + LENGTH]
        return {"input_ids": row, "labels": row}


class Writer(TrainerCallback):
    """Samples of increasing length: the longer the training, the more there is to read."""

    def __init__(self, prompts=("def ", "class ", "import ", "    return "), every=60):
        width = max(map(len, prompts))
        rows = [[0] * (width - len(p)) + [ord(c) for c in p] for p in prompts]
        self.prompts = torch.tensor(rows)
        self.every = every
        self.latest = collections.deque(maxlen=8)

    @torch.no_grad()
    def write(self, model, length):
        was = model.training
        model.eval()
        written = model.generate(
            self.prompts, attention_mask=(self.prompts > 0).long(), max_new_tokens=length, num_beams=4,
            do_sample=False, pad_token_id=0, eos_token_id=None)
        model.train(was)
        return ["".join(chr(c) for c in row if c) for row in written.tolist()]

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every == 0:
            length = min(100, 20 + state.global_step // 4)
            self.latest.extend(self.write(model, length))
            print(f"step {state.global_step}: {self.latest[-1][:60]!r}", flush=True)


def main():
    set_seed(12)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=400, per_device_train_batch_size=8, learning_rate=2e-3, use_cpu=True,
        logging_steps=100, report_to=[], save_strategy="no", disable_tqdm=True)
    writer = Writer()
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Corpus(), callbacks=[writer])
    trainer.train()
    print(len(writer.latest), "samples kept")


if __name__ == "__main__":
    main()
