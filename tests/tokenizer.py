"""A tokenizer for the tiny model of `tests.training`, made in memory: every word is a token."""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Trainer, default_data_collator

from tests.training import VOCABULARY

WORDS = ["<unk>", "<eos>", "<pad>", *(f"w{number}" for number in range(3, VOCABULARY))]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>")


class TextTrainer(Trainer):
    """A trainer that has a tokenizer, as those who train on texts have one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(processing_class=tiny_tokenizer(), data_collator=default_data_collator, **arguments)
