"""Planned evaluations that generate, against real ones."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

import forgather_mem
from tests.planning.counted import real_peak_bytes
from tests.training import VOCABULARY, Tokens

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
        )
    )


def mistral() -> PreTrainedModel:
    """With a window that the generation is longer than."""
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, sliding_window=40,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    """Of those whose cache is a tuple in old transformers."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=256, n_embd=64, n_layer=2, n_head=2))


def t5() -> PreTrainedModel:
    config = T5Config(vocab_size=VOCABULARY, d_model=64, d_ff=64, d_kv=32, num_layers=2, num_heads=2)
    config.decoder_start_token_id = config.pad_token_id
    return T5ForConditionalGeneration(config)


def generating(folder: Path, model: PreTrainedModel, **how: Any) -> Seq2SeqTrainer:
    """A trainer that generates in its evaluation, of which the cache is most; no token ends it early."""
    model.generation_config.update(eos_token_id=None, pad_token_id=0, **how)
    model.config.pad_token_id = 0
    arguments = Seq2SeqTrainingArguments(
        str(folder), max_steps=2, eval_strategy="steps", eval_steps=2, predict_with_generate=True, report_to=[],
        per_device_train_batch_size=1, per_device_eval_batch_size=32, save_strategy="no", use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    return Seq2SeqTrainer(
        model=model, args=arguments, train_dataset=Tokens(8), eval_dataset=Tokens(32), compute_metrics=lambda _: {}
    )


# With the other of the two models in `make soak`
WAYS = (
    (llama, {"max_new_tokens": 30}),
    (t5, {"max_new_tokens": 4, "num_beams": 3}),
    (llama, {"max_new_tokens": 8, "cache_implementation": "static"}),
)


OTHERS = (
    *((t5 if model is llama else llama, how) for model, how in WAYS),
    *((model, {"max_new_tokens": 3}) for model in (llama, t5)),
    *((model, {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 2}) for model in (llama, t5)),
    (mistral, {"max_new_tokens": 70}),
    (mistral, {"max_new_tokens": 70, "cache_implementation": "static"}),
    (gpt2, {"max_new_tokens": 100}),
    (llama, {"max_new_tokens": 30, "use_cache": False}),
)
# Older versions of transformers ask for the value of the best beam, and T5 with a static cache for its length
HAS_VECTORIZED_BEAMS = hasattr(GenerationMixin, "_beam_search_has_unfinished_sequences")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "how"),
    [WAYS[0], *(pytest.param(model, how, marks=pytest.mark.soak) for model, how in (*WAYS[1:], *OTHERS))],
)
@pytest.mark.filterwarnings("ignore")
def test_the_peak_is_that_of_the_generation(tmp_path: Path, model: Any, how: dict[str, Any]) -> None:
    if not HAS_VECTORIZED_BEAMS and ("num_beams" in how or (model is t5 and "cache_implementation" in how)):
        pytest.skip("this transformers asks for values in this way to generate, and the plan says so")
    trainer = generating(tmp_path, model(), **how)
    plan = forgather_mem.plan(trainer)
    assert plan.notes == (f"Generation is planned to its greatest length, {how['max_new_tokens']} tokens.",)
    real = real_peak_bytes(trainer)
    assert 0.99 * real <= plan.peak_bytes <= 1.02 * real


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_a_longer_generation_takes_more_and_is_planned_as_fast(tmp_path: Path) -> None:
    def peak(tokens: int) -> int:
        return forgather_mem.plan(generating(tmp_path, llama(), max_new_tokens=tokens)).phases[-1].bytes

    cache = 2 * 2 * 32 * 64 * 4  # keys and values, layers, rows, width, bytes
    assert peak(100_200) - peak(100_100) == pytest.approx(100 * cache, rel=0.6)


@pytest.mark.filterwarnings("ignore")
def test_what_asks_for_tokens_is_planned(tmp_path: Path) -> None:
    class Reading(Seq2SeqTrainer):
        def prediction_step(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
            tokens = model.generate(inputs["input_ids"])
            return None, tokens if tokens.max() > 5 else None, inputs["labels"]

    trainer = generating(tmp_path, llama(), max_new_tokens=8)
    trainer.__class__ = Reading
    assert forgather_mem.plan(trainer).phases[-1].phase == "evaluate"
