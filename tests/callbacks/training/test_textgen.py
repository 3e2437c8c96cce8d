"""Texts written during real trainings: what they say, what they take, and that the training does not notice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import GenerationConfig, LlamaForCausalLM, Trainer, TrainerCallback

from forgather_mem.callbacks import TextgenCallback
from forgather_mem.callbacks.training.textgen import config_for, generate
from forgather_mem.units import GIB, MIB
from tests.events import scalars, texts
from tests.memory import spike
from tests.tokenizer import TextTrainer, tiny_tokenizer
from tests.training import make_trainer, tiny_model

PROMPTS = ["w3 w4", "w5 w6 w7 w8", ""]
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "max_new_tokens": 5}


def trained(
    folder: Path, callback: TrainerCallback, trainer_class: type[Trainer] = TextTrainer, **settings: Any
) -> Any:
    trainer = make_trainer(folder, [callback], trainer_class=trainer_class, **settings)
    trainer.train()
    return trainer


def test_all_prompts_are_continued_every_so_many_steps(tmp_path: Path) -> None:
    trained(tmp_path, TextgenCallback(prompts=PROMPTS, generation_steps=2, max_new_tokens=4))
    found = texts(tmp_path)["generated_text"]
    assert [step for step, _ in found] == [2, 4, 6]
    for _, text in found:
        assert "w3 w4[START]" in text
        assert "w5 w6 w7 w8[START]" in text
        assert text.startswith("3 prompts, 12 tokens in ")
    assert [step for step, _ in scalars(tmp_path)["textgen/tokens_per_s"]] == [2, 4, 6]


def test_without_a_period_the_model_writes_at_each_evaluation(tmp_path: Path) -> None:
    trained(tmp_path, TextgenCallback(PROMPTS, max_new_tokens=2), eval_strategy="steps", eval_steps=3)
    assert [step for step, _ in texts(tmp_path)["generated_text"]] == [3, 6]


def test_a_failing_generation_is_logged_once_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORGATHER_MEM_STRICT")
    callback = TextgenCallback(PROMPTS, generation_steps=1, tokenizer=lambda text: {"input_ids": [10**6]})
    assert trained(tmp_path, callback).state.global_step == 6
    assert [record.message for record in caplog.records if "failed" in record.message][1:] == []
    assert callback.summary.switched_off


class Hungry(LlamaForCausalLM):
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        spike(64)
        return super().generate(*args, **kwargs)


@pytest.mark.slow
def test_the_memory_that_it_took_stands_beside_the_text(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [TextgenCallback(PROMPTS, generation_steps=6)], trainer_class=TextTrainer)
    trainer.model.__class__ = Hungry
    trainer.train()
    ((_, rise_gib),) = scalars(tmp_path)["textgen/peak_gib"]
    assert 62 * MIB <= rise_gib * GIB < 96 * MIB  # the kernel's counters lag a little
    ((_, text),) = texts(tmp_path)["generated_text"]
    assert "MiB of host memory" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("settings", "keywords", "message"),
    [
        (
            {"trainer_class": Trainer},
            {"generation_steps": 1},
            "there is no tokenizer; give the trainer its processing_class",
        ),
        ({}, {}, "this training has no evaluations; give generation_steps"),
    ],
)
def test_what_is_missing_is_said_once_at_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: Any, keywords: Any, message: str
) -> None:
    trained(tmp_path, TextgenCallback(PROMPTS, **keywords), **settings)
    said = capsys.readouterr().err
    assert said.count("TextgenCallback generates nothing") == 1
    assert message in said
    assert not texts(tmp_path)


def test_with_sharded_parameters_nothing_is_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, [TextgenCallback(PROMPTS, generation_steps=1)], trainer_class=TextTrainer)
    next(trainer.model.parameters()).ds_status = "NOT_AVAILABLE"  # as ZeRO 3 marks a parameter
    trainer.train()
    assert "the parameters are spread over the ranks, and all" in capsys.readouterr().err
    assert not texts(tmp_path)


@pytest.mark.slow
def test_a_writer_that_is_handed_in_is_used_and_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "mine")) as writer:
        callback = TextgenCallback(writer, PROMPTS, {"max_new_tokens": 2}, 3)
        for name in ("a", "b"):
            trained(tmp_path / name, callback)
        writer.add_text("generated_text", "by hand", 7)
    assert [step for step, _ in texts(tmp_path)["generated_text"]] == [3, 6, 3, 6, 7]
    assert not list((tmp_path / "a").rglob("*tfevents*"))


def test_settings_of_dictionary_object_and_argument() -> None:
    assert TextgenCallback("one prompt").prompts == ("one prompt",)
    assert TextgenCallback(PROMPTS).generation_config == {"max_new_tokens": 50}
    assert TextgenCallback(PROMPTS, None, {"max_new_tokens": 7}).generation_config == {"max_new_tokens": 7}
    assert TextgenCallback(None, PROMPTS, {"max_new_tokens": 7}, 1, 9).generation_config == {"max_new_tokens": 9}
    whole = GenerationConfig(max_new_tokens=7, do_sample=True)
    assert TextgenCallback(None, PROMPTS, whole, max_new_tokens=9).generation_config.max_new_tokens == 9
    assert whole.max_new_tokens == 7
    model, tokenizer = tiny_model(), tiny_tokenizer()
    assert config_for(model, tokenizer, whole).pad_token_id is not None
    assert whole.pad_token_id is None


def test_a_batch_gives_what_each_prompt_alone_gives() -> None:
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    config = config_for(model, tokenizer, {"max_new_tokens": 6})
    together = generate(model, tokenizer, PROMPTS[:2], config)
    for prompt, found in zip(PROMPTS, together, strict=False):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        alone = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, pad_token_id=2)
        assert found.text == tokenizer.decode(alone[0])[len(prompt) :]
        assert found.num_tokens == 6


def test_a_text_stops_at_the_end_of_sequence_though_others_in_the_batch_go_on() -> None:
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    free = generate(model, tokenizer, PROMPTS[:2], config_for(model, tokenizer, {"max_new_tokens": 6}))
    first, second = (tokenizer(found.text).input_ids for found in free)
    length = next(number for number, token in enumerate(first) if number and token not in second + first[:number])
    config = config_for(model, tokenizer, {"max_new_tokens": 6, "eos_token_id": first[length]})
    ended, goes_on = generate(model, tokenizer, PROMPTS[:2], config)
    assert ended.num_tokens == length
    assert tokenizer(ended.text).input_ids == first[:length]
    assert goes_on.text == free[1].text


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
