"""What stays of command lines, arguments and texts, and what goes: measured on tables of real kinds of both."""

import dataclasses
import random
import re
import string
import time
from pathlib import Path

import pytest
import yaml
from transformers import Seq2SeqTrainingArguments
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from forgather_mem.telemetry.redaction import redacted, redacted_argv, redacted_value

_LINES = yaml.safe_load((Path(__file__).parent / "command_lines.yaml").read_text(encoding="utf-8"))
HEX = "3f9ae27c51d04b8a9e6f7c2d1b5a8e0c4d7f9a26"  # as W&B's keys
REVISION = "0e9e39f249a16976918f6564b8830bc894c89659"


@pytest.mark.parametrize("line", _LINES["secret"], ids=lambda line: " ".join(line[1:])[:40])
def test_a_secret_goes_and_the_names_stay(line: list[str]) -> None:
    secret, *words = line
    told = redacted_argv(tuple(words))
    assert secret not in " ".join(told)
    assert len(told) == len(words)
    assert redacted_argv(told) == told, "a report is read and written again"
    names = re.findall(r"^--?[a-z][\w-]+(?==|$)", "\n".join(words), re.M)
    assert [name for name in names if name not in "\n".join(told)] == []


@pytest.mark.parametrize("words", _LINES["ordinary"], ids=lambda words: " ".join(words)[:40])
def test_an_ordinary_argument_stays(words: list[str]) -> None:
    assert redacted_argv(tuple(words)) == tuple(words)


def test_of_all_arguments_of_a_trainer_its_tokens_alone_are_secret_by_name() -> None:
    names = [field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)]
    hidden = [name for name in names if redacted_argv((f"--{name}", "value")) != (f"--{name}", "value")]
    assert {*hidden} - {"push_to_hub_token"} == {"hub_token"}
    assert len(names) > 100


def test_of_random_tokens_nearly_none_is_missed_and_of_names_of_files_none_is_taken_for_one() -> None:
    chance = random.Random(1)
    letters = string.ascii_letters + string.digits
    tokens = ["".join(chance.choices(letters, k=chance.randint(32, 64))) for _ in range(2_000)]
    assert sum(redacted(token) == token for token in tokens) < 20
    hexadecimal = ["".join(chance.choices("0123456789abcdef", k=40)) for _ in range(500)]
    assert not [number for number in hexadecimal if redacted(f"key {number}.") != "key ***."]
    for size in (3, 5, 8):
        words = [
            "model", "Llama3", "checkpoint", "Experiment", "12000", "lr2e", "Qwen25", "train", "GPTQ", "Int4", "v2",
        ]  # fmt: skip
        for joint in ("-", "_", "/", "."):
            name = joint.join(chance.choices(words, k=size))
            assert redacted(name) == name
    classes = ["ScaledDotProductFlashAttentionForCpu", *map(str, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())]
    for name in [*classes, *(name.replace("ForCausalLM", "PreTrainedModelOutputWithPast") for name in classes)]:
        assert redacted(name) == name


def test_a_hash_stays_where_one_belongs() -> None:
    assert redacted_argv(("--revision", REVISION, "--path", f"/cache/snapshots/{REVISION}/x")) == (
        "--revision", REVISION, "--path", f"/cache/snapshots/{REVISION}/x",
    )  # fmt: skip
    assert redacted_argv(("--name", HEX)) == ("--name", "***")


def test_texts_lose_what_looks_like_a_secret_and_no_word_after_a_colon() -> None:
    assert redacted("KeyError: token: abc, password: x") == "KeyError: token: abc, password: x"
    assert redacted("GET https://me:pw@host/a?page=1&token=abc&sig=d#e failed") == (
        "GET https://***@host/a?page=1&token=***&sig=***#e failed"
    )
    assert redacted("Authorization: Bearer abcdef.ghi") == "Authorization: Bearer ***"


def test_arguments_of_any_kind_lose_their_secrets() -> None:
    told = {"hub_token": "x", "lr": 0.1, "logger": [{"api_key": "x", "url": "https://a:b@c"}], "pad_token": "<pad>"}
    assert redacted_value(told) == {
        "hub_token": "***", "lr": 0.1, "logger": [{"api_key": "***", "url": "https://***@c"}], "pad_token": "<pad>",
    }  # fmt: skip
    assert redacted_value(None, "hub_token") is None


@pytest.mark.parametrize(
    "part", ["://a:b", "a=", "x:", "?a=1&", "a:b@", "{a:", "--a ", "sk-", "eyJ.", "://@", "token:[", "'\\", "a/", "aB1"]
)
def test_whatever_somebody_has_put_there_takes_a_second_at_most(part: str) -> None:
    words = (part * (10_000 // len(part)),) * 400
    begun_s = time.process_time()
    assert len("".join(redacted_argv(words))) < 60_000
    assert time.process_time() - begun_s < 1.0
