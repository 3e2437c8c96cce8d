"""Public names that are loaded on first use: a package lists them once, in the stub beside its `__init__.py`.

A line of the stub is `from forgather_mem.MODULE import NAME as NAME`; type checkers and editors read the same file.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing costs a megabyte and 4 ms, and the waiting parent must stay small
if TYPE_CHECKING:
    from collections.abc import Callable


def names_on_first_use(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of this package, from its stub."""
    module = sys.modules[package]
    module_of = _read_stub(module)

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        from importlib import import_module

        value = getattr(import_module(module_of[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *module_of}), list(module_of)


def _read_stub(module: object) -> dict[str, str]:
    spec = module.__spec__  # type: ignore[attr-defined]
    stub = spec.loader.get_data(f"{spec.origin}i").decode()  # also from a zip archive
    lines = [line.split() for line in stub.splitlines() if line.startswith("from forgather_mem.")]
    return {words[3]: words[1] for words in lines}
