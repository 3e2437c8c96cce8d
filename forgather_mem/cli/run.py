"""The help of `forgather-mem run`. The command itself is in `launch`, which imports none of this."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from forgather_mem.cli.run_arguments import OPTIONS, Option


def run() -> None:
    """Watch any training command, unchanged, and report where the memory went.

    Its exit code, signals and output stay its own. The report goes to stderr.

    FORGATHER_MEM=0 switches the watching off; files go below FORGATHER_MEM_DIR.
    """
    raise AssertionError("__main__ runs this command, before it imports any other")


def _parameter(name: str, option: Option) -> inspect.Parameter:
    text = f"{option.text} Repeatable." if option.repeats else option.text
    if not option.metavar:
        flag = typer.Option(name, help=text)
        return inspect.Parameter(
            option.field, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, flag]
        )
    shown = typer.Option(name, metavar=option.metavar, help=text)
    kind = list[str] if option.repeats else str
    return inspect.Parameter(
        option.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[kind | None if option.default is None else kind, shown],
    )


_COMMAND = typer.Argument(metavar="COMMAND...", help="A script, -m module, torchrun, ..., with its own options.")
_PARAMETERS = [
    inspect.Parameter("command", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[list[str], _COMMAND]),
    *(_parameter(name, option) for name, option in OPTIONS.items()),
]
run.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
run.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
