"""Tracks how far each step moves the weights, per layer, together with step timings."""
import collections
import contextlib
import inspect
import optparse
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ = 48


class Windows(Dataset):
    def __init__(self, source, stride=17):
        ids = torch.tensor(list(source.encode()))
        self.rows = ids.unfold(0, SEQ, stride)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


@contextlib.contextmanager
def stopwatch(sink):
    t0 = time.perf_counter()
    yield
    sink.append(time.perf_counter() - t0)


@contextlib.contextmanager
def measure_update(model, stats, layers):
    """Relative size of the change of the chosen layers while the block runs."""
    before = {n: p.detach().clone() for n, p in model.named_parameters() if any(l in n for l in layers)}
    now = dict(model.named_parameters())

    def compare():
        for n, old in before.items():
            rel = float((now[n].detach() - old).norm() / (old.norm() + 1e-8))
            stats[n] = 0.9 * stats.get(n, rel) + 0.1 * rel
    yield compare
    compare()


class UpdateSize(TrainerCallback):
    def __init__(self, layers=("fc1", "q_proj")):
        self.layers = layers
        self.stats = {}
        self.times = collections.deque(maxlen=100)
        self.stack = contextlib.ExitStack()

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.timer = stopwatch(self.times)
        self.timer.__enter__()
        self.compare = self.stack.enter_context(measure_update(model, self.stats, self.layers))

    def on_step_end(self, args, state, control, **kwargs):
        self.compare()
        self.timer.__exit__(None, None, None)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and self.times:
            logs["ms"] = round(1e3 * sum(self.times) / len(self.times), 2)

    def on_train_end(self, args, state, control, **kwargs):
        self.stack.close()


class StopOnFreeze(TrainerCallback):
    """Stops when nothing moves any more."""

    def __init__(self, watcher, floor=1e-7):
        self.watcher, self.floor = watcher, floor

    def on_step_end(self, args, state, control, **kwargs):
        s = self.watcher.stats
        if state.global_step > 50 and max(s.values()) < self.floor:
            control.should_training_stop = True
        return control


def main():
    set_seed(0)
    model = OPTForCausalLM(OPTConfig(
        vocab_size=256, hidden_size=32, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=SEQ, word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    watcher = UpdateSize()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300, per_device_train_batch_size=8,
        learning_rate=2e-3, lr_scheduler_type="cosine", warmup_steps=30, logging_steps=50, report_to=[],
        save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=Windows(inspect.getsource(optparse)),
                      callbacks=[watcher, StopOnFreeze(watcher)])
    trainer.train()
    top = max(watcher.stats, key=watcher.stats.get)
    print("moves most:", top, "final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
