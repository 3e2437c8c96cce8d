"""Whether torch records what a function does, instead of computing with it."""

from __future__ import annotations

import torch
from torch.fx import _symbolic_trace as _fx

_is_compiling, _is_jit, _is_transformed = (
    torch.compiler.is_compiling, torch._C._is_tracing, torch._C._are_functorch_transforms_active,
)  # fmt: skip
_mode_of, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE


def is_traced() -> bool:
    """Whether this call is no step of a training, but is traced, transformed, or made without values.

    That is so in `torch.compile`, `torch.export`, `torch.jit.trace`, `make_fx`, `symbolic_trace`, `vmap` and the other
    transforms of `torch.func`, and with fake tensors. Sizes may be tensors or symbols there, which must not be kept,
    and whatever reads them may get into the graph. Takes 0.5 us.
    """
    return bool(
        _is_compiling()  # first: to a compiler this is a constant, and it looks no further
        or _is_jit()
        or _is_transformed()
        or _fx._is_fx_tracing_flag  # of `torch.export` and `make_fx`, too; the function that returns it warns
        or _mode_of(_FAKE) is not None
    )
