"""`generate()` of transformers in a plan: its first tokens and its last ones, for those between take less than these.

No token ends it: a plan is of the greatest length. Without a cache of a known kind
each token is planned. All of it is set for good: it is called in a process that plans and then ends.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from forgather_mem.planning.private_state import surround

_MODELS = "transformers.generation.utils:GenerationMixin"
_STEPS = 4  # the prompt, and three more: of the last the cache is as large as it gets, and what the one before it left


class _Ended(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


class _Generation:
    """A call of `generate()`."""

    def __init__(self) -> None:
        self.tokens = self.length = self.rows = self.steps = self.token = 0

    def begin(self, configuration: Any, prompt: int, rows: int) -> None:
        """It is to generate so much."""
        self.length, self.tokens = configuration.max_length, configuration.max_length - prompt
        self.rows = rows * configuration.num_return_sequences
        ends = configuration.eos_token_id
        ending = {configuration.pad_token_id, *(ends if isinstance(ends, list) else [ends])}
        self.token = next(one for one in itertools.count() if one not in ending)

    def leave_out(self, keywords: dict[str, Any]) -> None:
        """After the prompt: go on where only the last tokens are left, if the cache is one that can be made longer."""
        more = self.tokens - _STEPS
        if self.steps > 1 or more <= 0:
            return
        cache = keywords.get("past_key_values")
        if not _is_lengthened(cache, more):
            return
        self.tokens -= more
        of = "decoder_" if keywords.get("encoder_outputs") is not None else ""
        for name in (f"{of}attention_mask", f"{of}position_ids"):
            row = keywords.get(name)
            if row is not None:
                keywords[name] = torch.cat([row, row[..., -1:].repeat_interleave(more, -1)], -1)


def generate_first_and_last_tokens(notes: list[str]) -> None:
    """Let all models of transformers do so, and note how many tokens that stands for."""
    now: list[_Generation] = []  # a model may generate inside of another's

    def generated(generate: Callable[..., object], *args: object, **keywords: object) -> object:
        now.append(_Generation())
        try:
            return generate(*args, **keywords)
        except _Ended:
            return torch.full((now[-1].rows, now[-1].length), now[-1].token)
        finally:
            now.pop()

    def prepared(prepare: Callable[..., object], *args: object, **keywords: Any) -> object:
        configuration = prepare(*args, **keywords)
        now[-1].begin(configuration, keywords["input_ids_length"], keywords["inputs_tensor"].size(0))
        note = f"Generation is planned to its greatest length, {now[-1].tokens:,} tokens."
        notes.extend([note] if note not in notes and now[-1].tokens > 0 else [])  # else generate() refuses
        return configuration

    def updated(update: Callable[..., Any], *args: object, **keywords: object) -> object:
        result = update(*args, **keywords)
        now[-1].leave_out(result)
        return result

    def goes_on(*_: object, **__: object) -> bool:
        if now[-1].steps >= now[-1].tokens:
            raise _Ended
        now[-1].steps += 1
        return True

    of = "transformers.generation.utils"
    surround(f"{_MODELS}.generate", generated, notes)
    surround(f"{_MODELS}._prepare_generated_length", prepared, notes)
    surround(f"{_MODELS}._update_model_kwargs_for_generation", updated, notes)
    surround(f"{_MODELS}._has_unfinished_sequences", goes_on, notes)
    surround(f"{_MODELS}._get_stopping_criteria", lambda *_, **__: sys.modules[of].StoppingCriteriaList(), notes)
    beams = "_beam_search_has_unfinished_sequences"
    if hasattr(getattr(sys.modules.get(of), "GenerationMixin", None), beams):
        surround(f"{_MODELS}.{beams}", lambda *_, **__: True, notes)  # older ones ask for a value


def _is_lengthened(cache: object, more: int) -> bool:
    """Whether it could be given so many tokens more; not one of transformers before 4.54, which has no layers."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())  # an encoder's does not grow
    for layer in layers:
        if isinstance(getattr(layer, "keys", None), torch.Tensor) and "Static" not in type(layer).__name__:
            window = getattr(layer, "sliding_window", None)  # it is filled, and what has left it is counted alone
            count = min(more, max(0, window - layer.keys.size(-2))) if window else more
            kept = layer.keys, layer.values
            layer.update(*(one.new_empty(one.size(-1)).expand(*one.shape[:-2], count, -1) for one in kept))
            if window:
                layer.cumulative_length += more - count
    return bool(layers)
