"""The commands of `forgather-mem`, and the messages when one of them fails.

A command is a function in a module of this package, both of its name. The module imports typer and nothing heavy; the
command imports what it needs when it runs, so that `--help` responds immediately.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence

import typer

from forgather_mem import __version__
from forgather_mem.errors import ForgatherMemError, did_you_mean, escape_controls

COMMANDS = {
    "run": "watch any training command, unchanged, and report",
    "plan": "what a script's training will take, before it trains",
    "report": "where memory peaked, what grew, what was cleared",
    "live": "follow a running training in the terminal",
    "compare": "which part of memory differs between runs",
    "mcp": "answer an assistant's questions about runs",
    "demo": "train a tiny model, and show where memory went",
    "ls": "list templates",
    "pp": "the text that a template renders to (also: render)",
    "graph": "what a template means: calls, values, variables",
    "targets": "the targets of a template",
    "trefs": "the templates that a template refers to",
    "check": "find the mistakes in a template",
    "allow": "allow names that a template needs",
}
"""What each command does, by its name, which is its module's. Runs first, then templates."""

ALIASES = {"render": "pp"}
# What follows them is for somebody else's command.
_SETTINGS = {
    name: {"ignore_unknown_options": name == "run", "allow_interspersed_args": False} for name in ("run", "plan")
}

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
_PREFIX = "forgather-mem: "


def dispatch(argv: Sequence[str]) -> int:
    """Run one command and return its exit code: 2 for wrong usage, 1 for a failure, 0 for success."""
    name = argv[0] if argv and not argv[0].startswith("-") else None
    if name is not None and (name := ALIASES.get(name, name)) not in COMMANDS:
        complain(f"there is no command {name!r}", _meant(name))
        return USAGE
    app = build([name] if name else list(COMMANDS))
    words = [name, *argv[1:]] if name else list(argv) or ["--help"]
    try:
        code = app(args=words, prog_name="forgather-mem", standalone_mode=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILURE
    except ForgatherMemError as error:
        complain(str(error))
        return FAILURE
    except BrokenPipeError:  # the reader, for example `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:  # a question that was not answered
        print("Aborted.", file=sys.stderr)
        return FAILURE
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # Of typer: wrong usage, whose class lies in another package from version to version
        said = textwrap.fill(error.format_message(), 78, initial_indent=" " * len(_PREFIX), subsequent_indent="  ")
        complain(said.lstrip(), f"try `forgather-mem {f'{name} ' if name else ''}-h`")
        return USAGE
    return code if isinstance(code, int) else 0


def build(names: Sequence[str]) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="forgather-mem",
        help="Where the memory of a training went, when, and how to get it back.",
        add_completion=False,
        rich_markup_mode=None,  # importing it takes longer than all the rest of --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for name in names:
        command = getattr(importlib.import_module(f"forgather_mem.cli.{name}"), name)
        app.command(name, short_help=COMMANDS[name], context_settings=_SETTINGS.get(name))(command)
    return app


def complain(message: str, hint: str | None = None) -> None:
    """Print an error on stderr, the message first, with control characters escaped."""
    text = message if hint is None else f"{message}\n  {hint}"
    print(_PREFIX + escape_controls(text, keep="\n"), file=sys.stderr)


def _meant(name: str) -> str:
    if name.endswith(".py") or os.path.isfile(name):
        return f"to watch it: forgather-mem run {shlex.quote(name)}"
    return did_you_mean(name, [*COMMANDS, *ALIASES]) or "run `forgather-mem --help` for a list"


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


def _common(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_show_version, help="Show the version."),
) -> None:
    pass
