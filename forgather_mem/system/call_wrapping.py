"""Runs a context around each call of a function, of any kind of function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from forgather_mem.telemetry.guard import FailureGuard

F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Around = Callable[..., AbstractContextManager[object] | None]

_FENCE = FailureGuard()


def around_calls(function: F, around: Around, sees: bool = False) -> F:
    """The function with a new context around each call; of the same kind as the original.

    What fails in the context is logged, and the function does what it does without it.

    Supports functions, methods, coroutines and generators. A generator is inside the context from its first item to its
    end. While torch traces a function, there is no context.

    With `sees` the context of a function is made with the arguments and keywords of the call.

    Raises:
        ValueError: for anything else, for example a class or an asynchronous generator.

    >>> import contextlib, io
    >>> said = io.StringIO()
    >>> loud = around_calls(print, lambda: contextlib.redirect_stdout(said))
    >>> loud("hello")
    >>> said.getvalue()
    'hello\\n'
    """
    inner: Any = function
    if isinstance(inner, staticmethod | classmethod):
        return cast(F, type(inner)(around_calls(inner.__func__, around, sees)))
    if not callable(inner) or isinstance(inner, type):
        raise ValueError(f"{inner!r} is no function: decorate a function or a method, not a class or a value")
    if inspect.isasyncgenfunction(inner):
        raise ValueError(f"{inner!r} is an asynchronous generator: decorate what consumes it")
    for is_kind, wrap in ((inspect.iscoroutinefunction, _coroutine), (inspect.isgeneratorfunction, _generator)):
        if is_kind(inner):
            return cast(F, functools.wraps(inner)(wrap(inner, around)))
    return cast(F, functools.wraps(inner)(_function(inner, around, sees)))


def surrounded(owner: object, name: str, around: Around, sees: bool = False) -> Callable[[], None]:
    """Put this around a module's or class's function; returns what undoes it, unless others are around it by then."""
    call = getattr(owner, name)
    ours = around_calls(call, around, sees)
    setattr(owner, name, ours)
    return lambda: setattr(owner, name, call if getattr(owner, name) is ours else getattr(owner, name))


class _Fenced:
    """A context of ours around somebody else's call."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._context: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        self._context = _FENCE.call("what we do before a call", self._enter)

    def _enter(self) -> AbstractContextManager[object] | None:
        context = self._around()
        if context is not None:
            context.__enter__()
        return context

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._context is not None:
            _FENCE.call("what we do after a call", self._context.__exit__, kind, error, at)
        if error is not None:  # its traceback is as without us
            error.__traceback__ = without_frames(error.__traceback__, __file__)


def _function(function: Callable[P, R], around: Around, sees: bool) -> Callable[P, R]:
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if "torch" in sys.modules:
            from forgather_mem.system.tracing import is_traced  # imports torch

            # What we do would break the graph of what torch traces, or get into it
            if is_traced():
                return function(*arguments, **keywords)
        try:
            with _Fenced(functools.partial(around, arguments, keywords) if sees else around):
                return function(*arguments, **keywords)
        finally:
            del arguments, keywords

    return call


def _coroutine(function: Callable[P, Awaitable[R]], around: Around) -> Callable[P, Awaitable[R]]:
    async def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            with _Fenced(around):
                return await function(*arguments, **keywords)
        finally:
            del arguments, keywords

    return call


def _generator(function: Callable[P, Generator[T, S, R]], around: Around) -> Callable[P, Generator[T, S, R]]:
    def call(*arguments: P.args, **keywords: P.kwargs) -> Generator[T, S, R]:
        try:
            with _Fenced(around):
                return (yield from function(*arguments, **keywords))
        finally:
            del arguments, keywords

    return call


def without_frames(trace: TracebackType | None, path: str) -> TracebackType | None:
    """The traceback from the first frame that is not of this file or folder; all of it if there is no other.

    The other frames keep those left out alive, and nobody finds these to clear them: so they let go of what they were
    called with before they raise.
    """
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(path):
        rest = rest.tb_next
    return rest or trace
