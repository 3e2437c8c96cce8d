"""The outermost modules of a training: those that its loop calls."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn import Module

from forgather_mem.system.call_wrapping import without_frames
from forgather_mem.system.tracing import is_traced

Arguments = tuple[object, ...]
Keywords = dict[str, object]
# Called with the module, and the arguments and keywords of its call.
Begins = Callable[[Module, Arguments, Keywords], None]
# Called with what it returned; None where an exception has left it.
Ends = Callable[[object], None]

_MOST_LEVELS = 4


class Outermost:
    """The modules that hold what the optimizers train and that are in no other module.

    A module may wrap the one that is really called. So when a step passes without a call of any, their children take
    their place, `_MOST_LEVELS` times at most.

    Args:
        found: All objects among which there may be such modules.
        optimizers: Those of the training. Without any, what has a gradient is trained.
    """

    def __init__(self, found: Iterable[object] = (), optimizers: Sequence[torch.optim.Optimizer] = ()) -> None:
        self._hear: tuple[Begins, Ends] | None = None
        self._heard: set[int] = set()  # ids of the modules whose calls are heard
        self._patched: dict[type[Module], _CallPatch] = {}
        self.find(found, optimizers)

    def find(self, found: Iterable[object], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """From now on those of this training are meant."""
        self._restore_classes()
        self._trained = _trained_by(optimizers)
        modules = [module for module in found if isinstance(module, Module)]
        if not optimizers:  # a loop that changes its parameters itself
            own = [parameter for module in modules for parameter in module.parameters(recurse=False)]
            self._trained = {id(parameter) for parameter in own if parameter.grad is not None}
        inner = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in inner]
        self._roots = [weakref.ref(module) for module in roots if self._holds_trained(module)]
        self._called, self._level = self._roots, 0
        self._is_heard, self._is_first = False, True
        if self._hear is not None:
            self._patch_classes()

    def as_one(self) -> Module | None:
        """The only one, or a module with all of them; None when none is alive."""
        alive = _alive(self._roots)
        return alive[0] if len(alive) == 1 else torch.nn.ModuleList(alive) if alive else None

    def are_shared(self, some: Sequence[torch.optim.Optimizer], others: Sequence[torch.optim.Optimizer]) -> bool:
        """Whether both train the same, or parts of one that is alive; if there are no others, whether some do."""
        first, second = _trained_by(some), _trained_by(others)
        parts = [set(map(id, root.parameters())) for root in _alive(self._roots)]
        return bool(first & second) or any(first & own and (own & second or not others) for own in parts)

    def listen(self, begins: Begins, ends: Ends) -> Callable[[], None]:
        """Call these around each call of such a module, the outermost one; returns what ends this."""
        self._hear = begins, ends
        self._patch_classes()
        return self._restore_classes

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
            self._restore_classes()
            # What a compiled one holds runs as compiled code, in which what we do would break the graph
            modules = [
                module
                for module in _alive(self._called)
                if not (_is_compiled_in_place(module) or hasattr(module, "_orig_mod"))
            ]
            inner = [child for module in modules for child in module.children() if self._holds_trained(child)]
            self._called = [weakref.ref(module) for module in inner] or self._called
            self._patch_classes()
        elif heard:
            self._level = _MOST_LEVELS
        return heard

    def _holds_trained(self, module: Module) -> bool:
        return any(id(parameter) in self._trained for parameter in module.parameters())

    def _patch_classes(self) -> None:
        for module in _alive(self._called):
            if not _is_compiled_in_place(module):
                self._heard.add(id(module))
                if type(module) not in self._patched:
                    self._patched[type(module)] = _CallPatch(type(module), self._heard, self._call)

    def _restore_classes(self) -> None:
        self._heard.clear()
        for patch in self._patched.values():
            patch.undo()
        self._patched.clear()
        self._depth = 0

    def _call(self, call: Callable[..., object], module: Module, arguments: Arguments, keywords: Keywords) -> object:
        self._is_heard = True
        self._depth += 1
        if self._depth == 1 and self._hear is not None:
            self._hear[0](module, arguments, keywords)
        result = None
        try:
            result = call(module, *arguments, **keywords)
            return result
        finally:
            self._depth -= 1
            if self._depth == 0 and self._hear is not None:
                self._hear[1](result)


def _alive(references: Sequence[weakref.ref[Module]]) -> list[Module]:
    return [module for reference in references if (module := reference()) is not None]


def _trained_by(optimizers: Sequence[torch.optim.Optimizer]) -> set[int]:
    return {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}


class _CallPatch:
    """The `__call__` of a class, with something around it for some of its objects.

    It stands in the class and not on the module: hooks would be part of a module that is pickled, copied or scripted.

    Args:
        cls: A class of modules.
        heard: The ids of the modules whose calls go through `around`; the others are called as ever.
        around: Called with the class's own `__call__`, the module, the arguments and the keywords.
    """

    def __init__(self, cls: type[Module], heard: set[int], around: Callable[..., object]) -> None:
        self._cls = cls
        self._is_own = "__call__" in cls.__dict__
        self._call = own = cls.__call__
        # A class without its own has at each call what its base has by then: torch.fx replaces that while it traces
        owner = None if self._is_own else next(base for base in cls.__mro__ if "__call__" in base.__dict__)

        @functools.wraps(own)
        def __call__(module: Module, /, *arguments: object, **keywords: object) -> object:
            call = own if owner is None else owner.__call__
            if is_traced():
                return call(module, *arguments, **keywords)
            try:
                if id(module) in heard:
                    return around(call, module, arguments, keywords)
                return call(module, *arguments, **keywords)
            except BaseException as error:
                # The traceback is as without us: a bare `raise` adds no entry for this frame again
                error.__traceback__ = without_frames(error.__traceback__, __file__)
                del module, arguments, keywords
                raise

        self._ours = cls.__call__ = __call__  # type: ignore[method-assign]

    def undo(self) -> None:
        """The class is as before; what others have put around it since stays, and ours in it does nothing."""
        if self._cls.__dict__.get("__call__") is not self._ours:
            return
        if self._is_own:
            self._cls.__call__ = self._call  # type: ignore[method-assign]
        else:
            del self._cls.__call__


def _is_compiled_in_place(module: Module) -> bool:
    """Whether a call of this module is compiled as a whole."""
    return getattr(module, "_compiled_call_impl", None) is not None
