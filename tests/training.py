"""Real, tiny trainings for the tests: a `transformers.Trainer` on a model of a few thousand parameters."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

VOCABULARY = 64
# Of us between trainings: transformers 4 has its loop in one method, so that a wrapper has to be there before it begins
STAYS = () if hasattr(Trainer, "_run_epoch") else ("_inner_training_loop", "__getstate__")

OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
needs_fully_shard = pytest.mark.skipif(OLD_TORCH, reason="fully_shard is planned with torch 2.9 or newer")


class Tokens(torch.utils.data.Dataset):
    """`num_rows` rows of `length` pseudo-random token ids."""

    def __init__(self, num_rows: int = 32, length: int = 16) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randint(0, VOCABULARY, (num_rows, length), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Bigrams(torch.nn.Module):
    """Predicts a token from the one before it: for many steps, which take a sixth of the time of `tiny_model`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.table(input_ids)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class AtStep(TrainerCallback):
    """Does something at an event of one step, or of each, or raises an error there."""

    def __init__(self, step: int | None, does: Callable[[], object] | BaseException, event: str = "step_end") -> None:
        def at_event(args: Any, state: Any, control: Any, **objects: Any) -> None:
            if step in (state.global_step, None):
                if isinstance(does, BaseException):
                    raise does
                does()

        setattr(self, f"on_{event}", at_event)


def make_trainer(
    folder: Path,
    callbacks: Any = (),
    *,
    trainer_class: type[Trainer] = Trainer,
    model: torch.nn.Module | None = None,
    rows: int = 32,
    **arguments: Any,
) -> Trainer:
    """A trainer that is ready: batch size 4, 6 steps, no progress bar, unless `arguments` say otherwise."""
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 2,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "seed": 7,
    }  # fmt: skip
    settings.update(arguments)
    trainer = trainer_class(
        model=model or tiny_model(), args=TrainingArguments(**settings), train_dataset=Tokens(rows),
        eval_dataset=Tokens(8), callbacks=list(callbacks),
    )  # fmt: skip
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    return trainer


def ours_in(*owners: object) -> list[str]:
    """The attributes whose values are objects of ours."""
    values = ((name, value) for owner in owners for name, value in vars(owner).items())
    return sorted(name for name, value in values if type(value).__module__.startswith("forgather_mem"))


def patches_in(trainer: Any) -> list[str]:
    """The methods of a trainer, of its parts and of its callbacks that are wrapped by us, but for those that stay."""
    handler = trainer.callback_handler
    owners = (trainer, handler, trainer.accelerator, *handler.callbacks)
    names = (name for owner in owners for name, value in vars(owner).items() if type(value).__name__ == "MethodPatch")
    return sorted(set(names) - set(STAYS))


def fingerprint(trainer: Trainer) -> tuple[str, list[float], str]:
    """Weights, losses and the state of all random generators: equal only if training was bit-identical."""
    weights = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        weights.update(tensor.detach().cpu().numpy().tobytes())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    generators = hashlib.sha256(repr((random.getstate(), np.random.get_state()[1].tolist())).encode())
    generators.update(torch.get_rng_state().numpy().tobytes())
    return weights.hexdigest(), losses, generators.hexdigest()
