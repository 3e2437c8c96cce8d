"""Distil a text classifier: a small BERT learns from a larger one, by soft targets and labels."""
import re
import resource

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)


class Reviews(Dataset):
    def __init__(self, rows):
        self.ids = torch.randint(5, 4000, (rows, 128))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 4}


class DistillationTrainer(Trainer):
    def __init__(self, *args, teacher=None, temperature=2.0, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval()
        self.temperature, self.alpha = temperature, alpha

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        teacher_logits = self.teacher(**inputs).logits
        soft = F.kl_div(
            F.log_softmax(outputs.logits / self.temperature, dim=-1),
            F.softmax(teacher_logits / self.temperature, dim=-1),
            reduction="batchmean",
        ) * self.temperature**2
        loss = self.alpha * outputs.loss + (1 - self.alpha) * soft
        return (loss, outputs) if return_outputs else loss


def bert(hidden, layers):
    return BertForSequenceClassification(BertConfig(
        vocab_size=4000, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * hidden,
        max_position_embeddings=128, num_labels=4,
    ))


teacher, student = bert(192, 4), bert(64, 2)
arguments = TrainingArguments(
    "out/hf_distill", per_device_train_batch_size=16, max_steps=4, learning_rate=3e-4, save_strategy="no", logging_steps=1,
    report_to="none", use_cpu=True, disable_tqdm=True,
)
trainer = DistillationTrainer(student, arguments, train_dataset=Reviews(400), teacher=teacher)
used = int(re.search(r"VmData:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 170 * 2**20,) * 2)
trainer.train()
print("done")
