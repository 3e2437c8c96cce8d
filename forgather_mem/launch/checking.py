"""Reads and checks the options of `forgather-mem run` before a long training begins, not at its end.

It runs in a process that exits before the command starts.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence

from forgather_mem.cli.app import complain, dispatch
from forgather_mem.cli.check import found_problems
from forgather_mem.cli.command import FAILURE, Arguments
from forgather_mem.cli.options import environment_of, parse_settings, policy_of
from forgather_mem.comparing.baseline import Baseline, NoBaseline
from forgather_mem.errors import UsageError
from forgather_mem.telemetry import run_session


def read(words: Sequence[str], writer: int) -> int:
    """Write the values of these options to a pipe; returns the exit code, and says what is wrong."""

    def check_run(**asked: object) -> int:
        arguments = Arguments(asked)
        _check_baseline(arguments)
        code = 0 if run_session.is_off() else _check_template(arguments)
        plan = arguments.plan or (arguments.baseline is not None and run_session.BASELINE)
        with open(writer, "wb") as pipe:
            pipe.write(marshal.dumps(asked | {"plan": plan}))
        return code

    code = dispatch(["run", *words], check_run)
    sys.stdout.flush()
    return code


def _check_template(arguments: Arguments) -> int:
    """Print what is wrong with the template or its variables; returns the exit code, 0 for no error."""
    if not (arguments.template or arguments.settings or arguments.allow):
        return 0
    from forgather_mem.config.check import CALLBACKS
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.load import WATCH

    policy = policy_of(arguments.allow)
    environment, name = ConfigEnvironment((), policy=policy), str(WATCH)
    if arguments.template:
        environment, name = environment_of(arguments.template, policy=policy)
    found, results = found_problems(environment, name, parse_settings(arguments.settings), target=CALLBACKS)
    mistakes = [problem for problem in found if problem.is_mistake]
    for problem in mistakes:
        has = "it has logging_dir; --template callbacks/memory.yaml has more" if not arguments.template else None
        complain(str(problem.error), has if problem.kind == "unused" and problem.error.hint is None else None)
    lacks = {"LeakDetector": "leaks are not looked for", "OOMReporter": "no out-of-memory error is explained"}
    lacking = [f"no {one}: {what}" for one, what in lacks.items() if one not in results and "..." not in results]
    if lacking and not mistakes:
        complain(f"{name} has {', and '.join(lacking)}", wrap=True)
    return FAILURE if mistakes else 0


def _check_baseline(arguments: Arguments) -> None:
    path, is_written = arguments.baseline, arguments.update_baseline
    if path is None:
        if is_written:
            raise UsageError("--update-baseline needs --baseline FILE.json, the file to write")
    else:
        try:
            (Baseline.replaceable if is_written else Baseline.read)(path)
        except NoBaseline as error:
            raise UsageError(*str(error).split("\n  ")) from None
