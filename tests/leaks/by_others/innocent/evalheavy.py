"""ViT with a thorough evaluation: keeps all features for a nearest-neighbour score, every 40 steps."""
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed


class Checks(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 5, n)
        self.x = rng.normal(0, 1, (n, 3, 16, 16)).astype(np.float32)
        for i, k in enumerate(self.y):
            self.x[i, :, ::int(k) + 1] += 0.8

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"pixel_values": torch.from_numpy(self.x[i]), "labels": int(self.y[i])}


class FeatureEvalTrainer(Trainer):
    """Adds a leave-one-out kNN accuracy on the CLS features to the metrics."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.features = []
        self.targets = []

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            out = model(**inputs, output_hidden_states=True)
        self.features.append([h.detach() for h in out.hidden_states])
        self.targets.append(inputs["labels"])
        return out.loss, out.logits, inputs["labels"]

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        y = torch.cat(self.targets)
        scores = []
        for layer in range(len(self.features[0])):
            f = torch.cat([f[layer] for f in self.features])[:, 0]
            d = torch.cdist(f, f).fill_diagonal_(float("inf"))
            near = y[d.topk(5, largest=False).indices]
            scores.append((near.mode(1).values == y).float().mean().item())
        metrics["eval_knn"] = max(scores)
        self.knn_by_layer = scores
        self.features.clear()
        self.targets.clear()
        return metrics


class BestWeights(TrainerCallback):
    def __init__(self):
        self.best = -1.0
        self.weights = None

    def on_evaluate(self, args, state, control, metrics=None, model=None, **kwargs):
        if metrics["eval_acc"] >= self.best:
            self.best = metrics["eval_acc"]
            self.weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def on_train_end(self, args, state, control, model=None, **kwargs):
        if self.weights is not None:
            model.load_state_dict(self.weights)


def acc(p):
    logits = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return {"acc": float((logits.argmax(-1) == p.label_ids).mean())}


if __name__ == "__main__":
    set_seed(2)
    model = ViTForImageClassification(ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=16,
        patch_size=4, num_labels=5))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=320, per_device_train_batch_size=16,
        per_device_eval_batch_size=64, eval_strategy="steps", eval_steps=40, learning_rate=5e-4, logging_steps=50,
        report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = FeatureEvalTrainer(model=model, args=args, train_dataset=Checks(2000, 0), eval_dataset=Checks(512, 1),
                                 compute_metrics=acc, callbacks=[BestWeights()])
    trainer.train()
    print("knn by layer", [round(s, 2) for s in trainer.knn_by_layer], "final loss",
          [h["loss"] for h in trainer.state.log_history if "loss" in h][-1])
