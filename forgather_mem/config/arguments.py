"""Which arguments would make a class of transformers fetch and run code?

Its configurations and models are open by default, and a few of their arguments name code: a backbone's
`trust_remote_code`, an `auto_map`, an attention kernel on the hub, a checkpoint that timm unpickles. A template may
not set these. A configuration sets an attribute for any further argument, so neither may it set what would give
attributes other names (`attribute_map`, `__dict__`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

CODE_SWITCHES = frozenset(
    {
        "attribute_map", "auto_map", "backbone_kwargs", "checkpoint_path", "custom_pipelines", "model_args",
        "pretrained_cfg", "pretrained_cfg_overlay", "trust_remote_code",
    }
)  # fmt: skip
"""Arguments that lead to somebody's code when they are set to anything that is true."""

KERNELS = ("attn_implementation", "experts_implementation")
"""Parts of argument names whose value may be a repository with a kernel, "owner/name"."""

BACKBONES = ("architecture", "backbone", "backbone_checkpoint")
"""Arguments that may be a folder or a repository with a model, and then with a model's code."""


def code_argument(args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """The argument that leads to code, as text, or None.

    >>> code_argument([], {"text_config": {"trust_remote_code": True}})
    'trust_remote_code=True'
    >>> code_argument([], {"attn_implementation": "sdpa", "backbone": "resnet50"}) is None
    True
    """
    seen: set[int] = set()
    stack: list[object] = [*args, kwargs]
    while stack:
        value = stack.pop()
        if id(value) in seen or not isinstance(value, Mapping | list | tuple | set | frozenset):
            continue
        seen.add(id(value))
        if not isinstance(value, Mapping):
            stack.extend(value)
            continue
        for key, item in value.items():
            if isinstance(key, str) and _leads_to_code(key, item):
                return f"{key}={item!r:.60}"
            stack.append(item)
    return None


def _leads_to_code(key: str, value: object) -> bool:
    if key in CODE_SWITCHES or key.startswith("__"):
        return bool(value)
    texts = value.values() if isinstance(value, Mapping) else [value]  # one for each part of a model
    if any(kernel in key for kernel in KERNELS):
        return any("/" in str(text) for text in texts)
    if key in BACKBONES:
        return any("/" in str(text) or ":" in str(text) or os.path.exists(str(text)) for text in texts)
    return False
