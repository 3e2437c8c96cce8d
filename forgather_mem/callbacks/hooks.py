"""Pipeline hooks (as in robo_orchard_lab) that clear the device cache after steps or epochs.

A pipeline opens a channel around each part of its work, `with hooks.begin("on_step", arg):`, and every hook registered
there runs before and after the body. Names and semantics are those of `robo_orchard_lab.pipeline.hooks`; that package
is not required.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, dataclass_transform, get_args

from forgather_mem.actions.clear import clear_cache
from forgather_mem.actions.collect import collect
from forgather_mem.engine.ledger import Ledger
from forgather_mem.errors import check_flags
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.report import Action
from forgather_mem.telemetry.triggers import check_clears

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
        """A copy with these fields changed."""
        return replace(self, **fields)


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


class RemovableHandle:
    """Removes a hook: by `remove()`, or by calling it. Once is enough.

    In robo_orchard_lab only the call removes the hook; `remove()` there makes the handle useless.
    """

    def __init__(self, take_out: Callable[[], object]) -> None:
        self._take_out: Callable[[], object] | None = take_out

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        take_out, self._take_out = self._take_out, None
        if take_out is not None:
            take_out()

    __call__ = remove


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


__all__ = [
    "ClearCacheHook",
    "ClearCacheHookConfig",
    "HookChannel",
    "HookContext",
    "PipelineHookArgs",
    "PipelineHookChannel",
    "PipelineHooks",
    "PipelineHooksConfig",
    "RemovableHandle",
]


class PipelineHooks:
    """A set of hooks: one channel for each part of the work.

    Attributes:
        InitFromConfig: A config object builds this class with itself as the only argument.
        hooks: The channels by name.
    """

    InitFromConfig: ClassVar[bool] = True

    def __init__(self) -> None:
        self.hooks: dict[str, HookChannel] = {name: HookChannel(name) for name in get_args(PipelineHookChannel)}

    def begin(
        self, channel: PipelineHookChannel, arg: PipelineHookArgs
    ) -> contextlib.AbstractContextManager[PipelineHookArgs]:
        """Run the hooks registered in this channel around a body; yields the arguments."""
        return self._channel(channel).begin(arg)

    def register_hook(self, channel: PipelineHookChannel, hook: HookContext) -> RemovableHandle:
        """Run one context in a channel, until its handle is removed.

        Raises:
            ValueError: for a channel that does not exist.
            TypeError: for an object without `before` and `after`.
        """
        return self._channel(channel).register(hook)

    def register_pipeline_hooks(self, hooks: PipelineHooks) -> RemovableHandle:
        """Run all contexts that another set has at this moment, until the handle is removed.

        Raises:
            TypeError: for anything else, such as a config that has not been called.
        """
        if not isinstance(hooks, PipelineHooks):
            raise TypeError(f"register_pipeline_hooks: {hooks!r} is no PipelineHooks; a config is called first")
        return hooks.register_into(self)

    def register_into(self, pipeline: Any) -> RemovableHandle:
        """Register all contexts with any object that has `register_hook(channel, context)`.

        This is how hooks of this library are added to a robo_orchard_lab pipeline:
        `ClearCacheHookConfig(...)().register_into(trainer.hooks)`.
        """
        handles = [pipeline.register_hook(name, context) for name, channel in self.hooks.items() for context in channel]
        return RemovableHandle(lambda: [handle() for handle in handles])

    def unregister_all(self) -> None:
        """Empty all channels."""
        for channel in self.hooks.values():
            channel.unregister_all()

    @classmethod
    def from_hooks(
        cls, hooks: PipelineHooks | PipelineHooksConfig[Any] | Iterable[PipelineHooks | PipelineHooksConfig[Any]] | None
    ) -> Self:
        """One set with the contexts of all arguments, in this order; configs are built first.

        Raises:
            TypeError: for something that is neither hooks nor a config of hooks.
        """
        gathered = cls()
        if hooks is None:
            return gathered
        for part in [hooks] if isinstance(hooks, PipelineHooks | PipelineHooksConfig) else hooks:
            gathered.register_pipeline_hooks(part() if isinstance(part, PipelineHooksConfig) else part)
        return gathered

    def __iadd__(self, other: PipelineHooks) -> Self:
        self.register_pipeline_hooks(other)
        return self

    def _channel(self, name: str) -> HookChannel:
        channel = self.hooks.get(name)
        if channel is None:
            raise ValueError(f"there is no channel {name!r}; the channels are: {', '.join(self.hooks)}")
        return channel


Hooks = TypeVar("Hooks", bound=PipelineHooks, covariant=True)


@dataclass_transform(kw_only_default=True)
class PipelineHooksConfig(Generic[Hooks]):
    """The configuration of hooks; calling it builds them, with the given fields replaced.

    Annotated attributes of a subclass are its fields; `class_type` is the class that it builds.

    >>> class Config(PipelineHooksConfig[PipelineHooks]):
    ...     class_type: type[PipelineHooks] = PipelineHooks
    ...     note: str = "plain"
    >>> Config(note="other").note
    'other'
    """

    class_type: type[Any]

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True)(cls)

    def __call__(self, **fields: Any) -> Hooks:
        config = replace(self, **fields) if fields else self  # type: ignore[type-var]  # see __init_subclass__
        built: Hooks = self.class_type(config)
        return built


class ClearCacheHook(PipelineHooks):
    """Clears the device cache after every Nth step or epoch, when the body has ended.

    Ids count from 0, so with 10 the cache is cleared after the steps with ids 9, 19, ... Without an accelerator there
    is no cache to clear, but garbage is still collected.

    Attributes:
        ledger: Cost and yield of each collection and clear.
    """

    def __init__(self, cfg: ClearCacheHookConfig) -> None:
        super().__init__()
        self.empty_cache_at = cfg.empty_cache_at
        self.empty_cache_freq = cfg.empty_cache_freq
        self.garbage_collection = cfg.garbage_collection
        self.ledger = Ledger()
        self._fence = FailureGuard()
        self.hooks[f"on_{cfg.empty_cache_at}"].register(HookContext("ClearCacheHook", after=self._ended))

    def _ended(self, arg: PipelineHookArgs) -> None:
        number = arg.global_step_id if self.empty_cache_at == "step" else arg.epoch_id
        if (number + 1) % self.empty_cache_freq == 0:
            if self.garbage_collection:
                self._do("collect", collect)
            self._do("clear", clear_cache)

    def _do(self, what: Action, give_back: Callable[[], Mapping[str, float]]) -> None:
        done = self._fence.call(f"ClearCacheHook, {what}", give_back)
        if done:
            self._fence.call("ledger", self.ledger.book, what, done)


class ClearCacheHookConfig(PipelineHooksConfig[ClearCacheHook]):
    """Builds a `ClearCacheHook`.

    Attributes:
        empty_cache_at: "step" or "epoch".
        empty_cache_freq: Every Nth of them.
        garbage_collection: Run a full collection before each clear, so that tensors in reference cycles are freed too.

    >>> hooks = ClearCacheHookConfig(empty_cache_at="step", empty_cache_freq=10)()
    >>> with hooks.begin("on_step", PipelineHookArgs(global_step_id=9, epoch_id=0)) as arg:
    ...     pass  # the cache is cleared behind this body, and not behind the nine before it

    Raises:
        ValueError: for another `empty_cache_at`, a period that is not an integer of 1 or more, or a
            `garbage_collection` that is neither true nor false.
    """

    class_type: type[ClearCacheHook] = ClearCacheHook
    empty_cache_at: Literal["step", "epoch"] = "epoch"
    empty_cache_freq: int = 1
    garbage_collection: bool = False

    def __post_init__(self) -> None:
        check_clears("ClearCacheHookConfig", self.empty_cache_at, self.empty_cache_freq)
        check_flags("ClearCacheHookConfig", garbage_collection=self.garbage_collection)
