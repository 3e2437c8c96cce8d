"""Generates text with a model that is being trained, without side effects on the training."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The result for one prompt.

    Attributes:
        prompt: The prompt, as given.
        text: The model's continuation.
        num_tokens: Number of generated tokens, without the end of sequence.
        ended: Whether it ended with an end of sequence; otherwise it hit the limit.
    """

    prompt: str
    text: str
    num_tokens: int
    ended: bool


def generate(model: Any, tokenizer: Any, prompts: Sequence[str], config: GenerationConfig) -> list[Generated]:
    """Continue all prompts in one batch, padded on the left, until each has ended or reached the limit.

    Afterwards the model's mode and all random generators are restored.

    Args:
        model: A model with transformers' `generate` method.
        tokenizer: Returns `input_ids` when called with a text, and has `decode`. Its settings are not touched.
        prompts: One or more texts.
        config: A configuration with token ids, as made by `config_for`.
    """
    rows = [_encode(tokenizer, prompt, config) for prompt in prompts]
    length = max(map(len, rows))
    padded = [[config.pad_token_id] * (length - len(row)) + row for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    device = next(model.parameters()).device
    with _evaluating(model), _random_generators_kept(model):
        sequences = model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
        )
    skip = 0 if getattr(model.config, "is_encoder_decoder", False) else length
    return [
        _decode(tokenizer, prompt, row, written[skip:], config)
        for prompt, row, written in zip(prompts, rows, sequences.tolist(), strict=True)
    ]


def config_for(model: object, tokenizer: object, asked: GenerationConfig | dict[str, object]) -> GenerationConfig:
    """The generation configuration: the given values on top of the model's own, with all token ids."""
    if isinstance(asked, GenerationConfig):
        config = copy.deepcopy(asked)
    else:
        config = copy.deepcopy(getattr(model, "generation_config", None) or GenerationConfig())
        config.update(**asked)
    if config.eos_token_id is None:
        config.eos_token_id = getattr(tokenizer, "eos_token_id", None)
    if config.pad_token_id is None:
        known = (getattr(tokenizer, "pad_token_id", None), *_end_tokens(config), 0)
        config.pad_token_id = next(token for token in known if token is not None)
    return config


def _encode(tokenizer: Any, prompt: str, config: GenerationConfig) -> list[int]:
    """The prompt's token ids; for an empty prompt, a beginning of sequence."""
    row = list(tokenizer(prompt)["input_ids"])
    ends = _end_tokens(config)
    while len(row) > 1 and row[-1] in ends:  # some tokenizers end every text
        row.pop()
    if row:
        return row
    starts = (config.bos_token_id, getattr(tokenizer, "bos_token_id", None), *ends, config.pad_token_id)
    return [next(token for token in starts if token is not None)]


def _decode(tokenizer: Any, prompt: str, row: list[int], written: list[int], config: GenerationConfig) -> Generated:
    ends = [written.index(token) for token in _end_tokens(config) if token in written]
    text_ids = written[: min(ends)] if ends else written
    # Decoded alone, a continuation would lose the space before its first word.
    before = tokenizer.decode(row, skip_special_tokens=True)
    whole = tokenizer.decode([*row, *text_ids], skip_special_tokens=True)
    text = whole[len(before) :] if whole.startswith(before) else tokenizer.decode(text_ids, skip_special_tokens=True)
    return Generated(prompt=prompt, text=text, num_tokens=len(text_ids), ended=bool(ends))


def _end_tokens(config: GenerationConfig) -> list[int]:
    tokens = config.eos_token_id
    if tokens is None:
        return []
    return [int(token) for token in tokens] if isinstance(tokens, list | tuple) else [int(tokens)]


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode for all modules; afterwards each has its own mode again, as some may be frozen in it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@contextmanager
def _random_generators_kept(model: torch.nn.Module) -> Iterator[None]:
    """Restores the random states of Python, numpy and torch, on the CPU and the model's devices."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type not in ("cpu", "meta")}
    kept = [(torch.get_device_module(device), _of_device(device)) for device in devices]
    states = [module.get_rng_state(*of_device) for module, of_device in kept]
    host = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(host[0])
        np.random.set_state(host[1])
        torch.set_rng_state(host[2])
        for (module, of_device), state in zip(kept, states, strict=True):
            module.set_rng_state(state, *of_device)


def _of_device(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is only one, and its functions take no device
