"""What optimizers keep for each tensor, and what their step makes and drops.

Sources: `optimizer_state_bytes` of torch.optim, torchao/optim/subclass_{8,4}bit.py, bitsandbytes/optim/optimizer.py and
transformers/trainer.py (which registers embeddings for 32-bit states), transformers/optimization.py (Adafactor).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple


class _Libraries:
    """Constants of bitsandbytes and torchao: blocks in numbers; smaller tensors keep states that are not quantized."""

    float_bytes = 4
    fewest_quantized = 4096
    bnb_block = 256
    torch_8_block = 256
    torch_4_block = 128


# Values of `TrainingArguments.optim`, by what they keep.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "adamw": ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_apex_fused"),
    "adamw_32bit": ("paged_adamw_32bit", "paged_adamw"),
    "bnb_8bit": ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"),
    "torch_8bit": ("adamw_torch_8bit",),
    "torch_4bit": ("adamw_torch_4bit",),
    "adafactor": ("adafactor",),
    "none": ("sgd",),
}
_OF_CLASS = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD"), "adamw"),
    **dict.fromkeys(("Adagrad", "RMSprop", "Muon"), "momentum"),
    "Adafactor": "adafactor",
}
FAMILY = {optim: family for family, optims in _FAMILIES.items() for optim in optims}


class Trained(NamedTuple):
    """One trainable tensor: its shape, the bytes of one number, and whether it is an embedding's."""

    shape: tuple[int, ...]
    item_bytes: int
    is_embedding: bool = False

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


def states_of(tensors: Iterable[Trained]) -> dict[str, int]:
    """Bytes of each family's state for these tensors.

    >>> states_of([Trained((1024, 1024), 4), Trained((1024,), 4)])["bnb_8bit"]
    2138112
    """
    kept = list(tensors)
    return {family: sum(map(of_one, kept)) for family, of_one in _STATES.items()}


def family_of(optim: object) -> str | None:
    """What this value of `TrainingArguments.optim` keeps; None if it is not known."""
    return FAMILY.get(str(optim or ""))


def family_of_class(optimizer: object) -> str | None:
    """What an optimizer of torch keeps, by its class; None if that is not known.

    >>> import torch
    >>> family_of_class(torch.optim.NAdam([torch.zeros(1)])), family_of_class(torch.optim.SGD([torch.zeros(1)]))
    ('adamw', 'none')
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has torch's inside
    if type(inner).__module__.partition(".")[0] != "torch":
        return None
    if type(inner).__name__ == "SGD":
        groups = getattr(inner, "param_groups", ())
        return "momentum" if any(group.get("momentum") for group in groups) else "none"
    return _OF_CLASS.get(type(inner).__name__)


def passing_bytes(optim: str, where: Literal["host", "device"], trained_bytes: int, largest: int) -> int:
    """Temporary bytes of one of its steps.

    Args:
        optim: As in `TrainingArguments`.
        where: Where the tensors are. On a device torch's default handles all tensors at once ("foreach").
        trained_bytes: Size of all tensors.
        largest: Number of elements of the largest.
    """
    family = family_of(optim)
    if optim in ("adamw_torch", "sgd") and where == "device":
        return trained_bytes
    if family in ("adafactor", "torch_8bit", "torch_4bit"):
        # Float32 copies. The C library can't use all the gaps that these leave between steps
        copies = 3 if where == "device" else 7
        return copies * _Libraries.float_bytes * largest
    return 0


def _adafactor(tensor: Trained) -> int:
    """A matrix has one float for each row and each column; a vector one for each element."""
    shape = tensor.shape
    if len(shape) < 2:
        return _Libraries.float_bytes * (shape[0] if shape else 1)
    return _Libraries.float_bytes * math.prod(shape[:-2]) * (shape[-2] + shape[-1])


def _bnb_8bit(tensor: Trained) -> int:
    """Two bytes a number and a scale for each block; embeddings and small tensors keep float32."""
    if tensor.is_embedding or tensor.numbers < _Libraries.fewest_quantized:
        return 2 * _Libraries.float_bytes * tensor.numbers
    return 2 * (tensor.numbers + _Libraries.float_bytes * math.ceil(tensor.numbers / _Libraries.bnb_block))


def _torchao(bits: int, block: int) -> Callable[[Trained], int]:
    def of_one(tensor: Trained) -> int:
        if tensor.numbers < _Libraries.fewest_quantized or tensor.numbers % block:
            return 2 * tensor.item_bytes * tensor.numbers
        return 2 * (tensor.numbers * bits // 8 + _Libraries.float_bytes * tensor.numbers // block)

    return of_one


_STATES: Mapping[str, Callable[[Trained], int]] = {
    "adamw": lambda tensor: 2 * tensor.item_bytes * tensor.numbers,
    "adamw_32bit": lambda tensor: 2 * _Libraries.float_bytes * tensor.numbers,
    "bnb_8bit": _bnb_8bit,
    "torch_8bit": _torchao(8, _Libraries.torch_8_block),
    "torch_4bit": _torchao(4, _Libraries.torch_4_block),
    "adafactor": _adafactor,
    "momentum": lambda tensor: tensor.item_bytes * tensor.numbers,
    "none": lambda tensor: 0,
}
