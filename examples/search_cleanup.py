"""`with cleanup():` around each trial of a hyperparameter search, one of which fails. Needs optuna.

python examples/search_cleanup.py
"""

import tempfile
import weakref

import optuna
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forgather_mem import cleanup

MODELS = []
ERRORS = []


class SearchTrainer(Trainer):
    """A trial is one call of `train`."""

    def train(self, *args, trial=None, **kwargs):
        try:
            with cleanup(f"trial {trial.number}"):
                return super().train(*args, trial=trial, **kwargs)
        except RuntimeError as error:
            ERRORS.append(error)  # kept for a summary; without the cleanup it would keep the trial's frames
            raise optuna.TrialPruned(str(error)) from None

    def compute_loss(self, model, inputs, *args, **kwargs):
        activations = torch.ones(8, 2**20)
        if self.args.learning_rate > 0.5:
            raise RuntimeError(f"diverged, {activations.numel()} activations")
        return super().compute_loss(model, inputs, *args, **kwargs)


def model_init(trial):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    MODELS.append(weakref.ref(model))
    return model


def main():
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
        trainer = SearchTrainer(model_init=model_init, args=args, train_dataset=rows, eval_dataset=rows)
        best = trainer.hyperparameter_search(
            hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", [0.001, 0.9, 0.01])},
            backend="optuna",
            sampler=optuna.samplers.GridSampler({"learning_rate": [0.001, 0.9, 0.01]}),
            n_trials=3,
            compute_objective=lambda metrics: metrics["eval_loss"],
        )
    alive = sum(ref() is not None for ref in MODELS)
    print(f"best: {best.hyperparameters}; {len(ERRORS)} trial failed; {alive} of {len(MODELS)} models alive")


if __name__ == "__main__":
    main()
