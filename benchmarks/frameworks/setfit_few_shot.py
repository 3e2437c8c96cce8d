import tiny
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression
from transformers import TrainerCallback

word = models.Transformer(tiny.bert(), max_seq_length=32)
body = SentenceTransformer(modules=[word, models.Pooling(64)], device="cpu")


class Keep(TrainerCallback):
    seen = []

    def on_step_end(self, args, state, control, **kwargs):
        self.seen.append(torch.ones(50_000))  # leak: seen


data = Dataset.from_dict({"text": tiny.texts(64), "label": [0, 1] * 32})
arguments = TrainingArguments("out", max_steps=120, batch_size=4, report_to="none")
trainer = Trainer(SetFitModel(body, LogisticRegression()), arguments, train_dataset=data, callbacks=[Keep()])
trainer.train()
print("loss", float(body[0].auto_model.embeddings.word_embeddings.weight.sum()))
