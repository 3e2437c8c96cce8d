"""`generate()` of transformers in a plan: its first tokens and its last ones, for those between take less than these.

No token ends it, since none has a value: a plan is of the greatest length. All of it is set for good: it is called in a
process that plans and then ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from forgather_mem.planning.pretending import Pretending

_STEPS = 4  # the prompt, and three more: of the last the cache is as large as it gets, and what the one before it left


class _Ended(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


class _Generation:
    """A call of `generate()`."""

    def __init__(self) -> None:
        self.tokens = self.length = self.rows = self.steps = 0

    def begin(self, configuration: Any, prompt: int, rows: int) -> None:
        """It is to generate so much."""
        self.length, self.tokens = configuration.max_length, configuration.max_length - prompt
        self.rows = rows * configuration.num_return_sequences

    def leave_out(self, keywords: dict[str, Any]) -> None:
        """After the prompt: go on where only the last tokens are left, if the cache is one that can be made longer."""
        more = self.tokens - _STEPS
        layers = _growing_layers(keywords.get("past_key_values"))
        if self.steps > 1 or more <= 0 or not layers:
            return
        self.tokens -= more
        for layer in layers:
            layer.keys, layer.values = _longer(layer.keys, more), _longer(layer.values, more)
        of = "decoder_" if keywords.get("encoder_outputs") is not None else ""
        for name in (f"{of}attention_mask", f"{of}position_ids"):
            row = keywords.get(name)
            if row is not None:
                keywords[name] = torch.cat([row, row[..., -1:].repeat_interleave(more, -1)], -1)


def generate_first_and_last_tokens(mode: Pretending, notes: list[str]) -> None:
    """Let all models of transformers do so, and note how many tokens that stands for."""
    module = sys.modules.get("transformers.generation.utils")
    if module is None:
        return
    models: Any = module.GenerationMixin
    generate, prepare = models.generate, models._prepare_generated_length
    update, criteria = models._update_model_kwargs_for_generation, module.StoppingCriteriaList
    now: list[_Generation] = []  # a model may generate inside of another's

    def generated(model: object, *args: object, **keywords: object) -> object:
        now.append(_Generation())
        try:
            return generate(model, *args, **keywords)
        except _Ended:
            return mode.unknown(torch.empty(now[-1].rows, now[-1].length, dtype=torch.long, device="meta"))
        finally:
            now.pop()

    def prepared(model: object, *args: object, **keywords: Any) -> object:
        configuration = prepare(model, *args, **keywords)
        now[-1].begin(configuration, keywords["input_ids_length"], keywords["inputs_tensor"].size(0))
        note = f"Generation is planned to its greatest length, {now[-1].tokens:,} tokens."
        notes.extend([note] if note not in notes else [])
        return configuration

    def updated(model: object, *args: object, **keywords: object) -> object:
        result = update(model, *args, **keywords)
        now[-1].leave_out(result)
        return result

    def goes_on(*_: object, **__: object) -> bool:
        if now[-1].steps == now[-1].tokens:
            raise _Ended
        now[-1].steps += 1
        return True

    always: Callable[..., bool] = lambda *_, **__: True  # noqa: E731
    models.generate, models._prepare_generated_length = generated, prepared
    models._update_model_kwargs_for_generation, models._has_unfinished_sequences = updated, goes_on
    models._beam_search_has_unfinished_sequences = always
    models._get_stopping_criteria = lambda *_, **__: criteria()


def _growing_layers(cache: object) -> list[Any]:
    """Those of a decoder's cache, to which each token is added."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return list(layers) if all(type(layer).__name__ == "DynamicLayer" for layer in layers) else []


def _longer(tensor: torch.Tensor, more: int) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape[:-2], tensor.size(-2) + more, tensor.size(-1)))
