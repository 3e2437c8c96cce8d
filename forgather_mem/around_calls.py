"""How is something done around each call of a function, of whatever kind the function is?"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

F = TypeVar("F")
Around = Callable[[], AbstractContextManager[object]]


def around_calls(function: F, around: Around) -> F:
    """The function with a context of its own around each call; of the same kind as the function.

    For functions, methods, coroutines, generators and asynchronous generators. A generator is inside the
    context from its first item to its end. Where `torch.compile` traces a function, there is no context.

    Raises:
        ValueError: for what is no function, for example a class.

    >>> import contextlib, io
    >>> said = io.StringIO()
    >>> loud = around_calls(print, lambda: contextlib.redirect_stdout(said))
    >>> loud("hello")
    >>> said.getvalue()
    'hello\\n'
    """
    inner: Any = function
    if isinstance(inner, staticmethod | classmethod):
        return cast(F, type(inner)(around_calls(inner.__func__, around)))
    if not callable(inner) or isinstance(inner, type):
        raise ValueError(f"{inner!r} is no function: decorate a function or a method, not a class or a value")
    for is_kind, wrap in (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    ):
        if is_kind(inner):
            return cast(F, functools.wraps(inner)(wrap(inner, around)))
    return cast(F, functools.wraps(inner)(_function(inner, around)))


def _function(function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        if _in_compiled_code():
            return function(*arguments, **keywords)
        with around():
            return function(*arguments, **keywords)

    return call


def _in_compiled_code() -> bool:
    """Whether `torch.compile` is tracing this: its graph would break at a context of ours."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _coroutine(function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    async def call(*arguments: Any, **keywords: Any) -> Any:
        with around():
            return await function(*arguments, **keywords)

    return call


def _generator(function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Generator[Any, Any, Any]:
        with around():
            return (yield from function(*arguments, **keywords))

    return call


def _async_generator(function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    # There is no `yield from` here: what the consumer sends and throws is handed on by hand.
    async def call(*arguments: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        with around():
            items = function(*arguments, **keywords)
            coming = items.__anext__()
            try:
                while True:
                    try:
                        item = await coming
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as thrown:  # noqa: BLE001 (handed on, as `yield from` does)
                        coming = items.athrow(thrown)
                    else:
                        coming = items.asend(sent)
            finally:
                await items.aclose()

    return call
