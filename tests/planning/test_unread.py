"""Models without their weights; each test in a child, since classes of torch are changed."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from forgather_mem.planning.isolation.child import in_a_child
from forgather_mem.planning.private_state import leave_weights_unread

pytestmark = pytest.mark.plans

SMALL = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
DTYPE = "torch_dtype" if transformers.__version__.startswith("4.") else "dtype"


def test_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    LlamaConfig(**SMALL, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)  # without weights beside it

    def load() -> list[tuple[str, str, torch.dtype, str]]:
        leave_weights_unread([])
        model = AutoModelForCausalLM.from_pretrained(tmp_path, **{DTYPE: torch.bfloat16}, attn_implementation="eager")
        weight = model.lm_head.weight
        return [(type(model).__name__, weight.device.type, weight.dtype, model.config._attn_implementation)]

    assert in_a_child(load) == [("LlamaForCausalLM", "meta", torch.bfloat16, "eager")]


def test_tied_weights_stay_tied() -> None:
    def build() -> bool:
        leave_weights_unread([])
        model = LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True))
        return model.lm_head.weight is model.model.embed_tokens.weight

    assert in_a_child(build)


def test_a_model_can_be_moved_and_cast_as_ever() -> None:
    def move() -> list[tuple[str, torch.dtype]]:
        real = nn.Linear(2, 2)
        leave_weights_unread([])
        unread = nn.Linear(2**15, 2**15).to("cpu")
        cast = nn.Linear(2, 2).to("cpu", torch.bfloat16)
        return [(model.weight.device.type, model.weight.dtype) for model in (real.to("cpu"), unread, cast)]

    assert in_a_child(move) == [("cpu", torch.float32), ("meta", torch.float32), ("meta", torch.bfloat16)]
