"""Modules as Python and pip have installed them, whatever file of the same name lies beside the script."""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

_STANDARD = os.path.dirname(os.__file__)
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # pip puts what we need beside us


@functools.cache
def installed(name: str) -> Any:
    """This module, from where it is installed: the script's folder, which is first on the path, may have another.

    That one stays the script's to import: a single module, unlike a package, is not left in `sys.modules`.

    Args:
        name: A package, or one module: of the standard library, or a compiled one of a package, which is not run.

    Raises:
        ImportError: if it is not installed.

    >>> installed("resource").RLIM_INFINITY
    -1
    """
    if name in sys.builtin_module_names:
        return import_module(name)
    package, known = name.rpartition(".")[0], sys.modules.get(name)
    # None is Python's sign that an import is to fail
    blocked = (name in sys.modules and known is None) or (package in sys.modules and sys.modules[package] is None)
    places = [os.path.join(place, package) for place in sorted(filter(None, sys.path), key=_is_last)]
    spec = None if blocked else PathFinder.find_spec(name, places)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not installed", name=name)
    if known is not None and (spec.submodule_search_locations or getattr(known, "__file__", None) == spec.origin):
        return known
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        if known is not None:
            sys.modules[name] = known
        elif not spec.submodule_search_locations:  # a package imports its parts later
            del sys.modules[name]
    return module


def _is_last(place: str) -> bool:
    """Whether what is on the path here was not installed, as far as its name tells."""
    return not (
        place == _OURS or place.startswith(_STANDARD) or os.path.basename(place) in ("site-packages", "dist-packages")
    )
