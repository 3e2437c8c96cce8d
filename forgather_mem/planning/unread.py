"""Models whose weights are never read: parameters on torch's "meta" device, which have a size and no memory."""

from __future__ import annotations

import torch
from torch import nn

_CONFIGURES = ("dtype", "torch_dtype", "attn_implementation")


def leave_weights_unread(models: type) -> None:
    """From now on, in this process, parameters take no memory, and `from_pretrained` reads the configuration alone.

    Args:
        models: transformers' `PreTrainedModel`.
    """
    register, move = nn.Module.register_parameter, nn.Module.to

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":  # one that is tied stays the same
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    def moved(module: nn.Module, *args: object, **keywords: object) -> nn.Module:
        if all(parameter.device.type != "meta" for parameter in module.parameters()):
            return move(module, *args, **keywords)  # type: ignore[call-overload,no-any-return]
        dtype = torch._C._nn._parse_to(*args, **keywords)[1]  # type: ignore[call-overload]
        return module if dtype is None else move(module, dtype)

    def from_pretrained(cls: object, name: str, *_: object, config: object = None, **keywords: object) -> object:
        if config is None:
            config = cls.config_class.from_pretrained(name)  # type: ignore[attr-defined]
        chosen = {key: keywords[key] for key in _CONFIGURES if keywords.get(key) not in (None, "auto")}
        return cls._from_config(config, **chosen)  # type: ignore[attr-defined]

    nn.Module.register_parameter = registered  # type: ignore[method-assign,assignment]
    nn.Module.to = moved  # type: ignore[method-assign,assignment]
    models.from_pretrained = classmethod(from_pretrained)  # type: ignore[attr-defined,arg-type]
