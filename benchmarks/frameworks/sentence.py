import tiny
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)

word = models.Transformer(tiny.bert(), max_seq_length=32)
model = SentenceTransformer(modules=[word, models.Pooling(64)], device="cpu")


class KeepingLoss(losses.MultipleNegativesRankingLoss):
    embeddings = []

    def forward(self, features, labels):
        self.embeddings.append(torch.ones(50_000))  # leak: embeddings
        return super().forward(features, labels)


arguments = SentenceTransformerTrainingArguments(
    "out", max_steps=tiny.STEPS, per_device_train_batch_size=8, report_to="none", use_cpu=True, disable_tqdm=True
)
words = tiny.texts(400)
data = Dataset.from_dict({"anchor": words, "positive": words[1:] + words[:1]})
trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=KeepingLoss(model))
print("loss", trainer.train().training_loss)
