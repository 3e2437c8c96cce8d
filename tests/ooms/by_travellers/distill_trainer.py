"""Knowledge distillation: a Trainer whose loss compares a small student with a larger teacher."""

import resource

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(0)
torch.set_num_threads(1)
LIMIT_MIB = 350
VOCAB, BLOCK = 4_000, 128


def make_model(width, layers):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=BLOCK,
        )
    )


class DistillationTrainer(Trainer):
    def __init__(self, *args, teacher, temperature=2.0, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher
        self.teacher.eval()
        self.temperature, self.alpha = temperature, alpha

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        student = model(**inputs)
        teacher = self.teacher(**inputs)
        t = self.temperature
        soft = (
            F.kl_div(F.log_softmax(student.logits / t, -1), F.softmax(teacher.logits / t, -1), reduction="batchmean")
            * t
            * t
            / BLOCK
        )
        loss = self.alpha * student.loss + (1 - self.alpha) * soft
        return (loss, student) if return_outputs else loss


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        ids = (index * 17 + torch.arange(BLOCK) * 3) % VOCAB
        return {"input_ids": ids, "labels": ids}


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


arguments = TrainingArguments(
    output_dir="out_distill",
    per_device_train_batch_size=8,
    max_steps=4,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = DistillationTrainer(
    model=make_model(96, 2), args=arguments, train_dataset=Blocks(), teacher=make_model(256, 8)
)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
trainer.train()
print("done")
