"""What keeps imports cheap: public names that are loaded on first use, and classes whose methods are not compiled anew.

A package lists its public names once, in the stub beside its `__init__.py`: a line is
`from forgather_mem.MODULE import NAME as NAME`; type checkers and editors read the same file.

The standard library's `dataclass` compiles six functions for each class, and a watched training needs some fifty of
them: here `__init__` alone is compiled. `fields`, `replace`, `asdict` and copies know these classes, too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing costs a megabyte and 4 ms, and the waiting parent must stay small
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import KW_ONLY as KW_ONLY
    from dataclasses import Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:

    def dataclass(cls=None, /, **options):
        """The class, or what makes one of it, by these options of `dataclasses.dataclass`; all but `order`."""
        return _made(cls, **options) if cls is not None else lambda of: _made(of, **options)

    def __getattr__(name):
        """What is imported beside it; who has no such class doesn't load the library's module."""
        if name not in ("KW_ONLY", "field", "replace"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import dataclasses

        return getattr(dataclasses, name)


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


def _made(
    cls: type, init: bool = True, repr: bool = True, eq: bool = True, unsafe_hash: bool = False, frozen: bool = False,  # noqa: A002
    **others: bool,
) -> type:  # fmt: skip
    import dataclasses

    cls = dataclasses.dataclass(init=False, repr=False, eq=False, **others)(cls)
    methods = dict(vars(_Methods))
    names = ["__repr__"] * repr + ["__eq__", "__hash__"] * eq + ["__hash__"] * unsafe_hash + _OF_FROZEN * frozen
    if init:
        names, methods["__init__"] = [*names, "__init__"], _init(cls, frozen)
    if not (frozen or unsafe_hash):
        methods["__hash__"] = None
    for name in names:
        if vars(cls).get(name) is None:
            setattr(cls, name, methods[name])
    return cls


def _init(cls: type, frozen: bool) -> Callable[..., None]:
    """Its `__init__`."""
    from dataclasses import MISSING

    known: dict[str, object] = {"_set_": object.__setattr__, "_none_": MISSING}
    first, named, lines = ["self"], ["*"], []
    for one in _fields(cls):
        name, default = one.name, f"_default_{one.name}"
        value = name if one.init else default
        known[default] = one.default if one.default_factory is MISSING else one.default_factory
        if one.default_factory is not MISSING:
            value = f"{default}() if {name} is _none_ else {name}" if one.init else f"{default}()"
            default = "_none_"
        elif one.default is MISSING:
            default = ""
        if one.init:
            (named if one.kw_only else first).append(f"{name}={default}" if default else name)
        if one.init or default:
            lines.append(f"_set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    words = ", ".join(first + named if named[1:] else first)
    exec(f"def __init__({words}):\n " + "\n ".join(lines or ["pass"]), known)
    made: Callable[..., None] = known["__init__"]  # type: ignore[assignment]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {one.name: one.type for one in _fields(cls)} | {"return": None}
    return made


class _Methods:
    """What all these classes do."""

    def __repr__(self) -> str:
        told = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in _fields(self) if one.repr)
        return f"{type(self).__qualname__}({told})"

    def __eq__(self, other: object) -> bool:
        return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_compared(self))

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(name)

    def __delattr__(self, name: str) -> None:
        _refuse(name)

    def __getstate__(self) -> list[object]:
        return [getattr(self, one.name) for one in _fields(self)]

    def __setstate__(self, state: list[object]) -> None:
        for one, value in zip(_fields(self), state, strict=True):
            object.__setattr__(self, one.name, value)


_OF_FROZEN = ["__setattr__", "__delattr__", "__getstate__", "__setstate__"]


def _compared(one: object) -> object:
    return tuple([getattr(one, its.name) for its in _fields(one) if its.compare])


def _refuse(name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change field {name!r}")


def _fields(one: object) -> tuple[Field[object], ...]:
    from dataclasses import fields

    return fields(one)  # type: ignore[arg-type]
