"""The outermost modules of a training: those that its loop calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import Module

# Called with the module, and the arguments and keywords of its call.
Begins = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
# Called with what it returned; None where an exception has left it.
Ends = Callable[[object], None]

_MOST_LEVELS = 4


class Outermost:
    """The modules that hold what the optimizers train and that are in no other module.

    A module may wrap the one that is really called. So when a step passes without a call of any, their children take
    their place, `_MOST_LEVELS` times at most.

    Args:
        found: All objects among which there may be such modules.
        optimizers: Those of the training.
    """

    def __init__(self, found: Iterable[object] = (), optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._trained = {id(parameter) for group in groups for parameter in group["params"]}
        modules = [module for module in found if isinstance(module, Module)]
        inner = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in inner]
        self._roots = [weakref.ref(module) for module in roots if self._holds_trained(module)]
        self._called = self._roots
        self._level = 0
        self._depth = 0
        self._is_heard = False
        self._is_first = True
        self._hear: tuple[Begins, Ends] | None = None
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def as_one(self) -> Module | None:
        """The only one, or a module with all of them; None when none is alive."""
        alive = [root for reference in self._roots if (root := reference()) is not None]
        return alive[0] if len(alive) == 1 else torch.nn.ModuleList(alive) if alive else None

    def listen(self, begins: Begins, ends: Ends) -> Callable[[], None]:
        """Call these around each call of such a module, the outermost one; returns what ends this."""
        self._hear = begins, ends
        self._set_hooks()
        return self._remove_hooks

    def are_heard_in_each_step(self) -> bool:
        """Whether one was called in the step that is over; if not, listen one level further in.

        The first step does not count: it may have begun before we listened.
        """
        heard, self._is_heard = self._is_heard, False
        if self._is_first:
            self._is_first = False
            return heard
        if not heard and self._hear is not None and self._level < _MOST_LEVELS:
            self._level += 1
            self._remove_hooks()
            modules = [module for reference in self._called if (module := reference()) is not None]
            modules = [module for module in modules if not _is_compiled(module)]
            inner = [child for module in modules for child in module.children() if self._holds_trained(child)]
            self._called = [weakref.ref(module) for module in inner] or self._called
            self._set_hooks()
        elif heard:
            self._level = _MOST_LEVELS
        return heard

    def _holds_trained(self, module: Module) -> bool:
        return any(id(parameter) in self._trained for parameter in module.parameters())

    def _set_hooks(self) -> None:
        for reference in self._called:
            module = reference()
            if module is not None and not _is_compiled_in_place(module):
                self._handles += (
                    module.register_forward_pre_hook(self._before, with_kwargs=True),
                    module.register_forward_hook(self._after, always_call=True),
                )

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._depth = 0

    def _before(self, module: Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._hear is None or torch.compiler.is_compiling():
            return
        self._is_heard = True
        self._depth += 1
        if self._depth == 1:
            self._hear[0](module, arguments, keywords)

    def _after(self, module: Module, arguments: object, outputs: object) -> None:
        if self._hear is None or torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth == 0:
            self._hear[1](outputs)


def _is_compiled_in_place(module: Module) -> bool:
    """Whether hooks of this module are part of what is compiled."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _is_compiled(module: Module) -> bool:
    """Whether what this module holds runs as compiled code, in which hooks would break the graph."""
    return _is_compiled_in_place(module) or hasattr(module, "_orig_mod")
