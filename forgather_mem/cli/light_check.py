"""Checks a template that names only our classes without torch and transformers, which take seconds to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forgather_mem.config.environment import Config

_OURS = ("forgather_mem:", "forgather_mem.")
_HEAVY = ("torch", "transformers", "transformers.trainer_callback")


def is_light(config: Config) -> bool:
    """Whether it names only our classes: their arguments can be checked without torch."""
    return all(use.name.startswith(_OURS) for use in config.names())


def is_well_without_torch(check: Callable[[], bool]) -> bool:
    """Whether a check succeeds in a separate process, with empty stand-ins for the modules that take seconds to import.

    If it does not, or fails, the same check with the real modules produces the message.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        sys.modules.update({heavy: _StandIn(heavy) for heavy in _HEAVY})
        if check():
            code = 0
    finally:
        os._exit(code)


class _StandIn(ModuleType):
    """A module in which every name is a class that does nothing; used as a decorator it returns its argument."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # marks it as a package

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": self.__name__, "__call__": lambda decorator, function: function})
