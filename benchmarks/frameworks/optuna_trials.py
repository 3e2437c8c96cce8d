import optuna
import tiny
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Keeping(TrainerCallback):
    logits = []

    def on_step_end(self, args, state, control, **kwargs):
        self.logits.append(torch.ones(50_000))  # leak: logits


def objective(trial):
    arguments = TrainingArguments(
        f"out{trial.number}", max_steps=80, per_device_train_batch_size=4, report_to="none", use_cpu=True, disable_tqdm=True,
        learning_rate=trial.suggest_float("lr", 1e-5, 1e-3),
    )  # fmt: skip
    return Trainer(tiny.gpt2(), arguments, train_dataset=tiny.tokens(320), callbacks=[Keeping()]).train().training_loss


optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
study.optimize(objective, n_trials=3)
print("loss", study.best_value)
