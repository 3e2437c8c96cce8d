"""Checks the arguments of `forgather-mem run` before a long training begins, not at its end.

It runs in a process that exits before the command starts.
"""

from __future__ import annotations

from forgather_mem.cli.app import FAILURE, USAGE, complain
from forgather_mem.cli.light_check import is_light, is_well_without_torch
from forgather_mem.cli.options import environment_of, parse_settings, policy_of
from forgather_mem.cli.run import Arguments
from forgather_mem.config.check import problems
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.errors import ForgatherMemError, UsageError
from forgather_mem.load import WATCH
from forgather_mem.units import parse_bytes

_TARGET = "trainer_callbacks"
_LEAST_PEAK_BYTES = 2**20  # less is a number whose unit was forgotten


def check_arguments(arguments: Arguments) -> int:
    """Print what is wrong with the template, its variables or the sizes; returns the exit code, 0 for no error."""
    try:
        for where, size in arguments.max_peaks:
            if parse_bytes(size) < _LEAST_PEAK_BYTES:
                raise ValueError(f"{where}={size}: is that GiB? Write a unit, for example {where}=24GiB")
    except ValueError as error:
        complain(f"run: --max-peak: {error}")
        return USAGE
    return _check_template(arguments) if arguments.template or arguments.settings or arguments.allow else 0


def _check_template(arguments: Arguments) -> int:
    try:
        policy = policy_of(arguments.allow)
        environment, name = ConfigEnvironment((), policy=policy), str(WATCH)
        if arguments.template:
            environment, name = environment_of(arguments.template, policy=policy)
        variables = parse_settings(arguments.settings)
        light = is_light(environment.load(name, **variables))
        if light and is_well_without_torch(lambda: _is_well(environment, name, variables)):
            return 0
        found = problems(environment, name, variables)
        if light and not any(problem.is_mistake for problem in found):
            _construct(environment, name, variables)
    except UsageError as error:
        complain(f"run: {error}", error.hint)
        return USAGE
    except ForgatherMemError as error:
        complain(str(error))
        return FAILURE
    mistakes = [problem for problem in found if problem.is_mistake]
    for problem in mistakes:
        complain(str(problem.error))
    return FAILURE if mistakes else 0


def _is_well(environment: ConfigEnvironment, name: str, variables: dict[str, object]) -> bool:
    if any(problem.is_mistake for problem in problems(environment, name, variables)):
        return False
    _construct(environment, name, variables)
    return True


def _construct(environment: ConfigEnvironment, name: str, variables: dict[str, object]) -> None:
    """Build what the template names: our classes, whose constructors only check their arguments."""
    environment.load(name, **variables).construct(_TARGET)
