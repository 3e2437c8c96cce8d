"""Finds what the data workers keep: they are other processes, but the code that runs in them can be read."""

from __future__ import annotations

import inspect
import re
from typing import Any

from forgather_mem.diagnose.leaks.holder_kinds import KINDS
from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.heap.source_lines import is_user_class, is_user_file, place, source_line

_KEEPS = re.compile(
    r"(?P<holder>\b(?:self\.)?\w+)(?:\[[^\]]*\])*"
    r"(?:\.(?:append|extend|add|setdefault|insert|appendleft|update)\s*\(|\[[^\]]+\]\s*=[^=]|\s*\+=)"
)


def worker_suspects(loader: Any, bytes_per_step: float) -> list[Suspect]:
    """Lines of the dataset and the collator that add to an attribute or to a module's variable."""
    loader = getattr(loader, "base_dataloader", loader)  # Accelerate's
    found: list[Suspect] = []
    for part in (getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)):
        functions = _functions(part)
        for function in functions:
            found += _in_function(part, function, bytes_per_step)
    return list({(one.held_by, one.allocated_at): one for one in found}.values())[:3]


def _functions(part: Any) -> list[Any]:
    if inspect.isfunction(part):
        return [part]
    cls = type(part)
    if not is_user_class(cls):
        inner = getattr(part, "dataset", None)  # Subset and similar
        return [] if inner is None or inner is part else _functions(inner)
    names = [name for base in cls.__mro__ if is_user_class(base) for name in vars(base)]
    return [getattr(cls, name) for name in names if inspect.isfunction(getattr(cls, name, None)) and name != "__init__"]


def _in_function(part: Any, function: Any, bytes_per_step: float) -> list[Suspect]:
    file = function.__code__.co_filename
    if not is_user_file(file):
        return []
    local = set(function.__code__.co_varnames)
    found = []
    for number in sorted({line for _, _, line in function.__code__.co_lines() if line}):
        text = source_line(file, number)
        match = _KEEPS.search(text)
        if match is None or match["holder"] in local:
            continue
        name = match["holder"].removeprefix("self.")
        owner = type(part).__name__ if match["holder"].startswith("self.") else function.__module__
        found.append(
            Suspect(
                type="attribute" if match["holder"].startswith("self.") else "variable",
                bytes_per_step=bytes_per_step,
                count_per_step=0.0,
                held_by=f"{owner}.{name}",
                allocated_at=place(file, number),
                source_line=text,
                each="in each data worker",
                cure=KINDS["workers"].cure,
                kind="workers",
                where="workers",
            )
        )
    return found
