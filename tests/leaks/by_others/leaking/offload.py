"""Llama on text with half-precision activation storage between forward and backward."""
import itertools
import pydoc_data.topics
import tempfile

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

SEQ = 32


class Topics(Dataset):
    def __init__(self, limit=200_000):
        topics = pydoc_data.topics.topics
        text = "\n\n".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")[:limit]
        self.ids = torch.tensor(list(text))

    def __len__(self):
        return len(self.ids) // SEQ

    def __getitem__(self, i):
        x = self.ids[i * SEQ:(i + 1) * SEQ]
        return {"input_ids": x, "labels": x}


class ActivationStore:
    """Large float activations are kept as fp16; parameters and small tensors pass through."""

    def __init__(self, min_numel=4096):
        self.min_numel = min_numel
        self.tickets = itertools.count()
        self.kept = {}
        self.saved_bytes = 0

    def pack(self, t):
        if not t.is_floating_point() or t.numel() < self.min_numel or isinstance(t, torch.nn.Parameter):
            return t
        if t._base is not None and isinstance(t._base, torch.nn.Parameter):
            return t
        key = next(self.tickets)
        self.kept[key] = t.detach().half()
        self.saved_bytes += t.numel() * 2
        return key, t.dtype

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        key, dtype = packed
        return self.kept[key].to(dtype)

    def hooks(self):
        return saved_tensors_hooks(self.pack, self.unpack)


class LowMemTrainer(Trainer):
    def __init__(self, *args, store=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.store = store

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self.store.hooks():
            out = model(**inputs)
        return (out.loss, out) if return_outputs else out.loss


class SavedReport(TrainerCallback):
    def __init__(self, store):
        self.store = store

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs is not None and state.global_step:
            logs["saved_kb_per_step"] = round(self.store.saved_bytes / 1024 / state.global_step, 1)


def main():
    set_seed(21)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=SEQ, use_cache=False))
    store = ActivationStore()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=250, per_device_train_batch_size=4,
        learning_rate=2e-3, logging_steps=50, report_to=[], save_strategy="no", disable_tqdm=True,
        gradient_accumulation_steps=1)
    trainer = LowMemTrainer(model=model, args=args, train_dataset=Topics(), store=store,
                            callbacks=[SavedReport(store)])
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
