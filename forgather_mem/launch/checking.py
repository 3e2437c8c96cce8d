"""Checks the arguments of `forgather-mem run` before a long training begins, not at its end.

It runs in a process that exits before the command starts.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

import typer

from forgather_mem.cli.app import FAILURE, USAGE, complain
from forgather_mem.cli.options import environment_of, parse_settings, policy_of
from forgather_mem.cli.run_arguments import Arguments
from forgather_mem.config.check import problems
from forgather_mem.config.environment import Config, ConfigEnvironment
from forgather_mem.errors import ForgatherMemError
from forgather_mem.load import WATCH
from forgather_mem.units import parse_bytes

_OURS = ("forgather_mem:", "forgather_mem.")
_TARGET = "trainer_callbacks"
_HEAVY = ("torch", "transformers", "transformers.trainer_callback")


def check_arguments(arguments: Arguments) -> int:
    """Print what is wrong with the template, its variables or the sizes; returns the exit code, 0 for no error."""
    try:
        for _, size in arguments.max_peaks:
            parse_bytes(size)
    except ValueError as error:
        complain(f"run: --max-peak: {error}")
        return USAGE
    return _check_template(arguments) if arguments.template is not None or arguments.settings else 0


def _check_template(arguments: Arguments) -> int:
    try:
        environment, name = environment_of(arguments.template or WATCH, None, policy_of(arguments.allow))
        variables = parse_settings(arguments.settings)
        light = _is_light(environment.load(name, **variables))
        if light and _is_well_without_torch(environment, name, variables):
            return 0
        found = problems(environment, name, variables)
        if light and not any(problem.is_mistake for problem in found):
            _construct(environment, name, variables)
    except typer.BadParameter as error:
        complain(f"run: {error.message}")
        return USAGE
    except ForgatherMemError as error:
        complain(str(error))
        return FAILURE
    mistakes = [problem for problem in found if problem.is_mistake]
    for problem in mistakes:
        complain(str(problem.error))
    return FAILURE if mistakes else 0


def _is_light(config: Config) -> bool:
    """Whether it names only our classes: their arguments can be checked without torch."""
    return all(use.name.startswith(_OURS) for use in config.names())


def _is_well_without_torch(environment: ConfigEnvironment, name: str, variables: dict[str, object]) -> bool:
    """The same check in a separate process, with empty stand-ins for the modules that take seconds to import.

    If it finds anything, the check with the real modules produces the message.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        sys.modules.update({heavy: _StandIn(heavy) for heavy in _HEAVY})
        if not any(problem.is_mistake for problem in problems(environment, name, variables)):
            _construct(environment, name, variables)
            code = 0
    finally:
        os._exit(code)


def _construct(environment: ConfigEnvironment, name: str, variables: dict[str, object]) -> None:
    """Build what the template names: our classes, whose constructors only check their arguments."""
    environment.load(name, **variables).construct(_TARGET)


class _StandIn(ModuleType):
    """A module in which every name is a class that does nothing; used as a decorator it returns its argument."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # marks it as a package

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": self.__name__, "__call__": lambda decorator, function: function})
