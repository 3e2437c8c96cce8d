"""Distil a small llama teacher into a smaller student on python source."""
import glob
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

SEQ = 64
TEMPERATURE = 2.0
ALPHA = 0.5


class SourceDataset(Dataset):
    def __init__(self, n_files=40):
        files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:n_files]
        blob = b"".join(open(f, "rb").read() for f in files)
        self.data = torch.frombuffer(bytearray(blob), dtype=torch.uint8)

    def __len__(self):
        return len(self.data) // SEQ

    def __getitem__(self, i):
        ids = self.data[i * SEQ:(i + 1) * SEQ].long()
        return {"input_ids": ids, "labels": ids}


def make_llama(hidden, layers):
    cfg = LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=SEQ, use_cache=False,
    )
    return LlamaForCausalLM(cfg)


class DistillTrainer(Trainer):
    def __init__(self, *args, teacher=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval()
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.kd_total = torch.zeros(())
        self.ce_total = 0.0
        self.kd_steps = 0
        self.teacher_agreement = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        with torch.no_grad():
            t_logits = self.teacher(input_ids=inputs["input_ids"]).logits
        kd = F.kl_div(
            F.log_softmax(out.logits / TEMPERATURE, dim=-1),
            F.softmax(t_logits / TEMPERATURE, dim=-1),
            reduction="batchmean",
        ) * TEMPERATURE ** 2 / SEQ
        ce = out.loss
        loss = ALPHA * ce + (1 - ALPHA) * kd
        if model.training:
            self.ce_total += ce.item()
            self.kd_total = self.kd_total + kd
            self.kd_steps += 1
            agree = (out.logits.argmax(-1) == t_logits.argmax(-1)).float().mean().item()
            self.teacher_agreement.append(agree)
            self.teacher_agreement = self.teacher_agreement[-100:]
        return (loss, out) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if self.kd_steps and "loss" in logs:
            logs["kd"] = round(float(self.kd_total) / self.kd_steps, 4)
            logs["ce"] = round(self.ce_total / self.kd_steps, 4)
            logs["agree"] = round(sum(self.teacher_agreement) / len(self.teacher_agreement), 3)
        super().log(logs, *args, **kwargs)


def main():
    set_seed(0)
    ds = SourceDataset()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=300,
        per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=50,
        report_to=[], save_strategy="no", disable_tqdm=True,
    )
    trainer = DistillTrainer(
        model=make_llama(32, 2), teacher=make_llama(48, 2), args=args, train_dataset=ds,
    )
    trainer.train()
    print("final loss", [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
