"""The names in tags: a built-in, something in a module, or something in a file.

Works on text only: nothing is imported and no file is opened here.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from forgather_mem.config.policy.allowlist import OPENABLE, VALUE_FUNCTIONS

MAX_NAME_CHARS = 500
_PUBLIC = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*", re.ASCII)
_PRIVATE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_FILE = re.compile(r"(?P<path>[^:\0]+\.py):(?P<qualname>.*)")


@dataclass(frozen=True, slots=True)
class Name:
    """A parsed name.

    Attributes:
        kind: "built-in" (module is "builtins" or ""), "module" or "file".
        module: Dotted module name, or the path of the file as written.
        qualname: The object's qualified name in it.
    """

    kind: Literal["built-in", "module", "file"]
    module: str
    qualname: str

    def __str__(self) -> str:
        return self.qualname if self.kind == "built-in" else f"{self.module}:{self.qualname}"

    @property
    def dotted(self) -> str:
        """Module and qualname joined by a dot, as in the hard list."""
        return f"{self.module}.{self.qualname}" if self.module else self.qualname

    def readings(self) -> Iterator[Name]:
        """The name as written, then with the colon further right, which may refer to the same object.

        >>> [str(name) for name in parse_name("torch:optim.SGD").readings()]
        ['torch:optim.SGD', 'torch.optim:SGD']
        """
        yield self
        module, parts = self.module, self.qualname.split(".")
        while self.kind == "module" and len(parts) > 1:
            module = f"{module}.{parts.pop(0)}"
            yield Name("module", module, ".".join(parts))


def parse_name(text: str, *, private: bool = False) -> Name:
    """Parse a name; `private` lets parts start with an underscore.

    >>> parse_name("torch.randn").module, parse_name("len").kind, parse_name("parts/cb.py:Mine").module
    ('torch', 'built-in', 'parts/cb.py')

    Raises:
        ValueError: for anything that is not a name; the message says why.
    """
    if len(text) > MAX_NAME_CHARS:
        raise ValueError(f"a name has {MAX_NAME_CHARS} characters at most; this one has {len(text):,}")
    if found := _FILE.fullmatch(text):
        _check(found["qualname"], private)
        return Name("file", found["path"], found["qualname"])
    module, colon, qualname = text.partition(":")
    _check(module, private)
    if colon:
        _check(qualname, private)
        return Name("built-in" if module == "builtins" else "module", module, qualname)
    if text in VALUE_FUNCTIONS or text in OPENABLE:
        return Name("built-in", "", text)
    first, _, rest = text.partition(".")
    if not rest or hasattr(builtins, first):
        return Name("built-in", "builtins", text)
    module, _, qualname = text.rpartition(".")
    return Name("module", module, qualname)


def is_within(module: str, namespace: str) -> bool:
    """Whether a module is the namespace or lies below it.

    >>> is_within("my_module.x", "my_module"), is_within("my_modules", "my_module")
    (True, False)
    """
    return module == namespace or module.startswith(namespace + ".")


def _check(part: str, private: bool) -> None:
    if (_PRIVATE if private else _PUBLIC).fullmatch(part):
        return
    if any(piece.startswith("_") for piece in part.split(".")):
        raise ValueError("a part that starts with an underscore is private")
    called = "; write it without (), arguments are indented below it" if part.endswith(")") else ""
    raise ValueError(f"write module:name; the parts of a name are ASCII letters, digits and underscores{called}")
