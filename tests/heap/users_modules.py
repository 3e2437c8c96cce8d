"""Modules of the user's, made from their text, and the names of what they hold."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from forgather_mem.heap.holder_names import names_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.syntax import Named, forget_trees


def make_module(folder: Path, text: str) -> Any:
    """The module; it stays, since the user's modules are known by their number."""
    forget_trees()  # as a new search
    name = f"users_module_{len(sys.modules)}"
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def named(container: object) -> list[Named]:
    """What the user's code calls it."""
    walk = ReachableGraph.walk(budget_s=10.0)
    position = walk.position(id(container))
    assert position is not None
    return names_of(walk, position)
