"""Failures put into our own code: any function of the memory half raises, from some call on, while a training runs.

The function's code object is exchanged, so that everybody who has it already, bound, wrapped or imported by name, gets
the failure too. Nothing of ours is replaced by something that works differently.
"""

import importlib
import inspect
import pkgutil
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import forgather_mem

# Not called by a training: the template half, the command line, what is written and read after a run.
_ELSEWHERE = ("cli", "config", "launch", "demo", "notebook", "testing", "trackers", "__main__")
_NEEDS_MORE = ("forgather_mem.callbacks.lightning", "forgather_mem.launch.on_path")


def memory_half() -> list[types.ModuleType]:
    """Every module that a training may call."""
    names = [module.name for module in pkgutil.walk_packages(forgather_mem.__path__, "forgather_mem.")]
    wanted = [n for n in names if n.split(".")[1] not in _ELSEWHERE and not n.startswith(_NEEDS_MORE)]
    return [importlib.import_module(name) for name in wanted]


def functions() -> dict[str, types.FunctionType]:
    """Every function and method that is written there, by module and name."""
    found: dict[str, types.FunctionType] = {}
    for module in memory_half():
        for owner in [module, *_classes(module)]:
            for value in vars(owner).values():
                for function in _functions_of(value):
                    if function.__code__.co_filename == module.__file__:
                        found[f"{module.__name__.partition('.')[2]}:{function.__qualname__}"] = function
    return found


def _classes(module: types.ModuleType) -> Iterator[type]:
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield value


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, property):
        candidates = [value.fget, value.fset]
    elif isinstance(value, staticmethod | classmethod):
        candidates = [value.__func__]
    else:
        candidates = [value]
    for candidate in candidates:
        plain = inspect.unwrap(candidate) if callable(candidate) else None
        if isinstance(plain, types.FunctionType):
            yield plain


class Fault:
    """Stands in a function's code: counts calls, and raises from one of them on.

    Attributes:
        calls: How often it has been called.
    """

    def __init__(self, function: types.FunctionType, error: Callable[[], BaseException] | None, from_call: int) -> None:
        self._works = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self._works.__kwdefaults__ = function.__kwdefaults__
        self._error = error
        self._from_call = from_call
        self.calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.calls += 1
        if self._error is not None and self.calls >= self._from_call:
            raise self._error()
        return self._works(*arguments, **keywords)


def _code(fault: Fault, function: types.FunctionType) -> types.CodeType:
    closed_over = function.__code__.co_freevars
    source = f"def outer({', '.join(closed_over)}):\n def f(*a, **k):\n  "
    source += f"({', '.join(closed_over)},)\n  " if closed_over else ""
    source += "return 4711(*a, **k)\n return f"
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(source, "<fault>", "exec"), names)
    code: types.CodeType = names["outer"](*closed_over).__code__
    return code.replace(co_consts=tuple(fault if const == 4711 else const for const in code.co_consts))


@contextmanager
def failing(
    function: types.FunctionType, error: Callable[[], BaseException] | None, from_call: int = 1
) -> Iterator[Fault]:
    """Meanwhile this function raises, from that call on; never without an `error`."""
    works = function.__code__
    fault = Fault(function, error, from_call)
    function.__code__ = _code(fault, function)
    try:
        yield fault
    finally:
        function.__code__ = works
