"""Hooks around parts of a pipeline: their arguments, contexts with a before and an after, and channels."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from forgather_mem.errors import did_you_mean

PipelineHookChannel = Literal["on_loop", "on_epoch", "on_step", "on_batch", "on_model_forward", "on_model_backward"]
"""The parts of a training that hooks can surround, outermost first."""

Part = Callable[["PipelineHookArgs"], None]


@dataclass
class PipelineHookArgs:
    """The position of a pipeline, and the objects it works with. Every field is optional; ids count from 0."""

    accelerator: Any = None
    epoch_id: int = 0
    step_id: int = 0
    global_step_id: int = 0
    max_epoch: int | None = None
    max_step: int | None = None
    start_epoch: int = 0
    start_step: int = 0
    dataloader: Any = None
    model: Any = None
    optimizer: Any = None
    lr_scheduler: Any = None
    batch: Any = None
    model_outputs: Any = None
    reduce_loss: Any = None

    def copy_with_updates(self, **fields: Any) -> Self:
        """A copy with these fields changed.

        Raises:
            AttributeError: for a field that does not exist.
        """
        for name in fields:
            if name not in self.__dataclass_fields__:
                hint = did_you_mean(name, self.__dataclass_fields__)
                raise AttributeError(f"PipelineHookArgs has no field {name!r}" + (f"; {hint}" if hint else ""))
        return dataclasses.replace(self, **fields)


class HookContext:
    """What runs before and after one part of the work.

    Override `before` and `after`, or pass functions.

    Args:
        name: Used in messages.
        before: Called with the pipeline's arguments when the part begins.
        after: Called with the same arguments when it has ended, also by an exception.
    """

    def __init__(self, name: str | None = None, before: Part | None = None, after: Part | None = None) -> None:
        self.name = name
        self._before = before
        self._after = after

    @classmethod
    def from_callable(
        cls, name: str | None = None, before: Part | None = None, after: Part | None = None
    ) -> HookContext:
        """The same as the constructor, under the name that robo_orchard_lab gives it."""
        return cls(name, before, after)

    def before(self, arg: PipelineHookArgs) -> None:
        """The part begins."""
        if self._before is not None:
            self._before(arg)

    def after(self, arg: PipelineHookArgs) -> None:
        """The part has ended."""
        if self._after is not None:
            self._after(arg)

    @contextlib.contextmanager
    def begin(self, arg: PipelineHookArgs) -> Iterator[PipelineHookArgs]:
        """`before`, the body, `after`. If `before` fails, neither the body nor `after` runs."""
        self.before(arg)
        try:
            yield arg
        finally:
            self.after(arg)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class RemovableHandle:
    """Removes a hook: by `remove()`, by calling it, or at the end of a `with`. Once is enough.

    In robo_orchard_lab only the call removes the hook; `remove()` there makes the handle useless.
    """

    __slots__ = ("_take_out",)

    def __init__(self, take_out: Callable[[], object]) -> None:
        self._take_out: Callable[[], object] | None = take_out

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        take_out, self._take_out = self._take_out, None
        if take_out is not None:
            take_out()

    __call__ = remove

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class HookChannel:
    """The contexts registered for one part of the work. One context registered twice runs once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._contexts: dict[HookContext, None] = {}

    def register(self, context: HookContext) -> RemovableHandle:
        """From the next `begin` on, run this context too, after the existing ones.

        Raises:
            TypeError: for an object without `before` and `after`.
        """
        if isinstance(context, type) or not (hasattr(context, "before") and hasattr(context, "after")):
            raise TypeError(f"{self.name}: {context!r} is no HookContext; write HookContext(after=...)")
        self._contexts[context] = None
        return RemovableHandle(lambda: self._contexts.pop(context, None))

    def unregister_all(self) -> None:
        """Remove all contexts."""
        self._contexts.clear()

    @contextlib.contextmanager
    def begin(self, arg: PipelineHookArgs) -> Iterator[PipelineHookArgs]:
        """Every `before`, the body, every `after`; both in the order of registration.

        `after` runs for each context whose `before` succeeded, also if the body or another `after` fails.
        """
        with contextlib.ExitStack() as afters:
            begun = []
            try:
                for context in tuple(self._contexts):
                    context.before(arg)
                    begun.append(context)
                yield arg
            finally:
                for context in reversed(begun):  # the stack unwinds from its top
                    afters.callback(context.after, arg)

    def __iter__(self) -> Iterator[HookContext]:
        return iter(tuple(self._contexts))

    def __len__(self) -> int:
        return len(self._contexts)

    def __repr__(self) -> str:
        return f"HookChannel({self.name!r}, {list(self._contexts)})"
