"""Is what the user asked `forgather-mem run` for possible? Looked at before a long training begins, not at its end."""

from __future__ import annotations

import typer

from forgather_mem.cli.app import FAILURE, USAGE, complain
from forgather_mem.cli.options import environment_of, policy_of, variables_of
from forgather_mem.config.check import problems
from forgather_mem.errors import ForgatherMemError
from forgather_mem.launch.arguments import Arguments
from forgather_mem.load import WATCH
from forgather_mem.units import parse_bytes


def check(arguments: Arguments) -> int:
    """Say what is wrong with the template, its variables or the sizes: the exit code, 0 when nothing is."""
    try:
        for _, size in arguments.max_peaks:
            parse_bytes(size)
    except ValueError as error:
        complain(f"run: --max-peak: {error}")
        return USAGE
    return _check_template(arguments) if arguments.template is not None or arguments.settings else 0


def _check_template(arguments: Arguments) -> int:
    """It imports what the template names, torch with it: seconds, but before the training and in another process."""
    try:
        environment, name = environment_of(arguments.template or WATCH, None, policy_of(arguments.allow))
        found = problems(environment, name, variables_of(arguments.settings))
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
