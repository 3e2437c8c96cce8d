"""`forgather-mem check`: finds what is wrong with a template without building your objects."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forgather_mem.cli.command import FAILURE
from forgather_mem.cli.options import add_allow, add_template_arguments, environment_of, parse_settings, policy_of
from forgather_mem.cli.output import json_text, print_text
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import TemplateError

if TYPE_CHECKING:
    from forgather_mem.config.check import Problem
    from forgather_mem.config.environment import ConfigEnvironment


def add_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    add_allow(parser)
    parser.add_argument(
        "--allow-file", dest="allow_files", metavar="FILE", action="append", type=Path, default=[],
        help="A Python file that templates may use. Repeatable.",
    )  # fmt: skip
    parser.add_argument(
        "--unsafe-any", action="store_true",
        help="Allow everything: only for templates that you would run as Python.",
    )  # fmt: skip
    parser.add_argument("-t", "--target", metavar="NAME", help="The list to build, if it is not trainer_callbacks.")
    parser.add_argument("--json", dest="as_json", action="store_true", help="Print the findings as JSON.")


def check(
    template: str,
    settings: list[str],
    searchpath: list[Path],
    allow: list[str],
    allow_files: list[Path],
    unsafe_any: bool,
    target: str | None,
    as_json: bool,
) -> int:
    """Check a template: syntax, names, arguments, variables. Exits with 1 when something is wrong.

    Imports what the policy allows, to compare arguments and values; builds none of your objects.
    """
    environment, name = environment_of(template, searchpath, policy_of(allow, allow_files, unsafe_any))
    log = logging.getLogger("forgather_mem.config")
    with contextlib.ExitStack() as after:
        after.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)  # warnings are among the findings
        found, results = found_problems(environment, name, parse_settings(settings), target)
    mistakes = [problem for problem in found if problem.is_mistake]
    if as_json:
        print(json_text({"template": name, "ok": not mistakes, "findings": [*map(_as_json, found)]}, indent=2))
    else:
        print_text("\n".join([*(str(problem.error) for problem in found), *_summary(name, found, results)]))
    return FAILURE if mistakes else 0


def found_problems(
    environment: ConfigEnvironment, name: str, variables: dict[str, object], target: str | None = None
) -> tuple[list[Problem], str]:
    """What is wrong with a template, and what comes of it. Torch is imported only if what it names imports it.

    `target` is one that it has to have.
    """
    from forgather_mem.config.check import CALLBACKS, Problem, callbacks_of, problems_of, results

    try:  # once: a hostile template takes as long as it may each time
        config = environment.load(name, **variables)
        if target is not None and target not in config.targets:
            callbacks_of(config, target, None)  # raises: it says what may have been meant
    except TemplateError as error:
        return [Problem(kind="template", error=error)], ""
    return problems_of(config, variables, target or CALLBACKS), results(config, target or CALLBACKS)


def _as_json(problem: Problem) -> dict[str, object]:
    told = {name: getattr(problem.error, name) for name in ("message", "template", "line", "column", "path", "hint")}
    return {"kind": problem.kind, **told, "allow": list(getattr(problem.error, "entries", ()))}  # of a refused name


def _summary(name: str, found: Sequence[Problem], results: str) -> Iterator[str]:
    mistakes = sum(problem.is_mistake for problem in found)
    notes = len(found) - mistakes
    counts = [f"{n} {what}{'s' if n > 1 else ''}" for n, what in ((mistakes, "finding"), (notes, "note")) if n]
    yield f"{name}: {', '.join(counts) or 'no problems found'}" + (f": {results}" if results and not mistakes else "")
