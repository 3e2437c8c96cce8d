"""`TextgenCallback`: lets the model generate text from time to time, so that people see what it has learned."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.training.info import is_sharded, verbatim
from forgather_mem.callbacks.training.output_paths import EventTarget
from forgather_mem.system.usage import UsageWindow
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent, Every, check_period
from forgather_mem.units import GIB, format_bytes, format_duration

DEFAULT_MAX_NEW_TOKENS = 50


class TextgenCallback(RuleCallback):
    """Lets the model continue some prompts and writes the result to TensorBoard, as the text `generated_text`.

    All prompts form one batch; a text ends at the end of sequence. The training is not affected: modes of modules and
    random generators are restored. The cost is shown with the text and as `textgen/time_ms`, `textgen/tokens_per_s` and
    `textgen/peak_gib`, the memory on top of what was in use before. Rank 0 only; a model whose parameters are sharded
    over the ranks (FSDP, ZeRO 3) can't be run by one rank, so nothing is generated then. Missing requirements are
    reported at the start of the training.

    Args:
        summary_writer: A `SummaryWriter` to write through. Default: a file of our own in the run's TensorBoard folder.
        prompts: Texts to continue. They may also be the only positional argument, as a list.
        generation_config: A dict on top of the model's own configuration, or a complete `GenerationConfig`.
        generation_steps: Generate every N optimizer steps. Default: at each evaluation of the training.
        max_new_tokens: Maximum number of tokens to generate. Default: the configuration's value, else 50.
        tokenizer: Default: the trainer's `processing_class`.
        reset_peaks: Reset the memory peak before generating. Other readers of that peak see the reset; without it the
            memory is known only if it rises above an older peak.
        logging_dir: The folder for our own file, if it can't be found as for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.

    Raises:
        ValueError: for missing prompts, a period below 1, or settings that transformers refuses.
    """

    def __init__(
        self,
        summary_writer: object = None,
        prompts: Sequence[str] | str | None = None,
        generation_config: GenerationConfig | Mapping[str, object] | None = None,
        generation_steps: int | None = None,
        max_new_tokens: int | None = None,
        *,
        tokenizer: object = None,
        reset_peaks: bool = True,
        logging_dir: str | Path | None = None,
        enabled: bool = True,
        strict: bool = False,
    ) -> None:
        if prompts is None and isinstance(summary_writer, str | list | tuple):
            summary_writer, prompts = None, summary_writer
        check_period("TextgenCallback", "generation_steps", "step", generation_steps)
        self.summary_writer = summary_writer
        self.prompts = (prompts,) if isinstance(prompts, str) else tuple(prompts or ())
        if not self.prompts or not all(isinstance(prompt, str) for prompt in self.prompts):
            raise ValueError(
                f"TextgenCallback(prompts={prompts!r}): give a list of texts, for example ['Once upon a time']"
            )
        self.generation_steps = generation_steps
        self.generation_config = _checked_config(generation_config, max_new_tokens)
        by_steps, config = generation_steps is not None, self.generation_config
        writer = EachRun(_Writer, (summary_writer, logging_dir), self.prompts, config, tokenizer, reset_peaks, by_steps)
        when = Every(steps=generation_steps) if by_steps else AtEvent("evaluate")
        rules = [Rule(event, [writer], "TextgenCallback") for event in (AtEvent("train_begin"), when)]
        super().__init__(rules, enabled=enabled, strict=strict)


@dataclass(eq=False)
class _Writer:
    """The work: generates and writes."""

    run: RunInfo
    target: tuple[object, str | Path | None]
    prompts: Sequence[str]
    config: GenerationConfig | dict[str, object]
    tokenizer: object
    reset_peaks: bool
    by_steps: bool

    def __post_init__(self) -> None:
        self._target = EventTarget(self.run, *self.target)
        self._off = self.run.rank != 0

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.event == "train_begin" and moment.is_main:
            self._check(moment)
        elif moment.event != "train_begin" and not self._off and self._missing(moment) is None:
            self._write(moment)
        return NOTHING

    def _check(self, moment: Moment) -> None:
        """Report at the start of a training what is missing."""
        strategy, missing = getattr(moment.args, "eval_strategy", None), self._missing(moment)
        if missing is None and not self.by_steps and getattr(strategy, "value", strategy) == "no":
            missing = "this training has no evaluations; give generation_steps"
        if missing is not None:
            self._off = True
            moment.run.print_line(f"forgather-mem: TextgenCallback generates nothing: {missing}")

    def _missing(self, moment: Moment) -> str | None:
        """Why nothing can be generated; None if it can."""
        model: Any = moment.objects.get("model")
        if not callable(getattr(model, "generate", None)):
            return f"the model ({type(model).__name__}) has no method generate()"
        if self._tokenizer_of(moment) is None:
            return "there is no tokenizer; give the trainer its processing_class, or TextgenCallback(tokenizer=...)"
        if is_sharded(model, moment.args):
            return "the parameters are spread over the ranks, and all of them would have to take part"
        return None

    def _tokenizer_of(self, moment: Moment) -> object:
        given = (self.tokenizer, moment.objects.get("processing_class"), moment.objects.get("tokenizer"))
        found = next((tokenizer for tokenizer in given if tokenizer is not None), None)
        return getattr(found, "tokenizer", found)  # a processor of texts and images has one

    def _write(self, moment: Moment) -> None:
        model, tokenizer = moment.objects["model"], self._tokenizer_of(moment)
        config = config_for(model, tokenizer, self.config)
        began_s, window = time.perf_counter(), UsageWindow(reset_peaks=self.reset_peaks)
        entered = moment.run.enter_phase("generate")
        try:
            texts = generate(model, tokenizer, self.prompts, config)
        finally:
            if entered:
                moment.run.leave_phase("generate")
            memory = window.close()
        took_s, num_tokens = time.perf_counter() - began_s, sum(text.num_tokens for text in texts)
        values = {"textgen/time_ms": took_s * 1e3, "textgen/tokens_per_s": num_tokens / took_s}
        head = f"{len(texts)} prompts, {num_tokens:,} tokens in {format_duration(took_s)}"
        used = memory.device or memory.host
        if used.exact:
            rise_bytes = used.peak_bytes - used.start_bytes
            values["textgen/peak_gib"] = rise_bytes / GIB
            head += f", {format_bytes(rise_bytes)} of {'device' if memory.device else 'host'} memory"
        page = self._target.page(moment)
        page.scalars(values, moment.step)
        parts = [head, *(verbatim(f"{text.prompt}[START]{text.text}") for text in texts)]
        page.text("generated_text", "\n\n---\n\n".join(parts), moment.step)


def _checked_config(
    config: GenerationConfig | Mapping[str, object] | None, max_new_tokens: int | None
) -> GenerationConfig | dict[str, object]:
    check_period("TextgenCallback", "max_new_tokens", "token", max_new_tokens)
    if isinstance(config, GenerationConfig):
        config = copy.deepcopy(config)
        if max_new_tokens is not None:
            config.max_new_tokens = max_new_tokens
        return config
    asked = dict(config or {})
    if max_new_tokens is not None or not {"max_new_tokens", "max_length"} & asked.keys():
        asked["max_new_tokens"] = max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    known = GenerationConfig()
    if unknown := known.update(**asked):
        raise ValueError(f"TextgenCallback(generation_config={unknown!r}): transformers has no such settings")
    known.validate()
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The result for one prompt.

    Attributes:
        prompt: The prompt, as given.
        text: The model's continuation.
        num_tokens: Number of generated tokens, without the end of sequence.
    """

    prompt: str
    text: str
    num_tokens: int


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
    return Generated(prompt=prompt, text=text, num_tokens=len(text_ids))


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
    # There is one of type mps only, and its functions take no device
    kept = [(torch.get_device_module(device), () if device.type == "mps" else (device,)) for device in devices]
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
