"""Texts of a whole batch, each as its prompt alone gives it, and nothing of the training is touched."""

import pytest
import torch

from forgather_mem.callbacks.training.generation import config_for, generate
from tests.tokenizer import tiny_tokenizer
from tests.training import tiny_model

PROMPTS = ["w3 w4", "w5 w6 w7 w8", ""]
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "max_new_tokens": 5}


def test_a_batch_gives_what_each_prompt_alone_gives() -> None:
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    config = config_for(model, tokenizer, {"max_new_tokens": 6})
    together = generate(model, tokenizer, PROMPTS[:2], config)
    for prompt, found in zip(PROMPTS, together, strict=False):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        alone = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=2)
        assert found.text == tokenizer.decode(alone[0])[len(prompt) :]
        assert (found.num_tokens, found.ended) == (6, False)


def test_a_text_stops_at_the_end_of_sequence_though_others_in_the_batch_go_on() -> None:
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    free = generate(model, tokenizer, PROMPTS[:2], config_for(model, tokenizer, {"max_new_tokens": 6}))
    first, second = (tokenizer(found.text).input_ids for found in free)
    length = next(number for number, token in enumerate(first) if number and token not in second + first[:number])
    config = config_for(model, tokenizer, {"max_new_tokens": 6, "eos_token_id": first[length]})
    ended, goes_on = generate(model, tokenizer, PROMPTS[:2], config)
    assert (ended.num_tokens, ended.ended) == (length, True)
    assert tokenizer(ended.text).input_ids == first[:length]
    assert (goes_on.text, goes_on.ended) == (free[1].text, False)


def test_modules_and_random_generators_are_as_before_also_after_a_failure() -> None:
    model, tokenizer = tiny_model().train(), tiny_tokenizer()
    model.model.norm.eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    generate(model, tokenizer, PROMPTS, config_for(model, tokenizer, SAMPLED))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)

    def fails(*args: object) -> None:
        torch.rand(1)
        raise RuntimeError("out of memory")

    model.lm_head.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(model, tokenizer, PROMPTS, config_for(model, tokenizer, SAMPLED))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
