"""The commands of `forgather-mem`, and the messages when one of them fails.

A command is a function in a module of this package, both of its name; `add_arguments` of that module declares its
parameters. Those that show templates are all in `templates`. A module imports nothing heavy; the command imports what
it needs when it runs, so that `--help` responds immediately.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence

from forgather_mem import __version__
from forgather_mem.cli.command import FAILURE, INTERRUPTED, USAGE
from forgather_mem.cli.parser import CommandParser
from forgather_mem.errors import ForgatherMemError, UsageError, did_you_mean, shown

COMMANDS = {
    "run": "watch any training command, unchanged, and report",
    "plan": "what a script's training will take, before it trains",
    "report": "where memory peaked, what grew, what was cleared",
    "live": "follow a running training in the terminal",
    "compare": "which part of memory differs between runs",
    "mcp": "answer an assistant's questions about runs",
    "demo": "train a tiny model that leaks, and show who holds what grows",
    "ls": "list templates",
    "pp": "the text that a template renders to (also: render)",
    "graph": "what a template means: calls, values, variables",
    "targets": "the targets of a template",
    "trefs": "the templates that a template refers to",
    "check": "find the mistakes in a template",
    "allow": "allow names that a template needs",
}
"""What each command does, by its name. Runs first, then templates."""

ALIASES = {"render": "pp"}
OF_TEMPLATES = ("ls", "pp", "graph", "targets", "trefs")

_ABOUT = "Where the memory of a training went, when, and how to get it back."
_WIDTH = 80


def dispatch(argv: Sequence[str], do: Callable[..., int | None] | None = None) -> int:
    """Run one command and return its exit code: 2 for wrong usage, 1 for a failure, 0 for success.

    `do` is called with its values instead of the command.
    """
    markdown = "--markdown" in argv
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv or ["--help"])
    if name is not None and (name := ALIASES.get(name, name)) not in COMMANDS:
        complain(f"there is no command {name!r}", _meant(name))
        return USAGE
    try:
        return perform(name, words, do)
    except SystemExit as end:  # after --help and --version
        return end.code if isinstance(end.code, int) else FAILURE
    except UsageError as error:
        message = f"{name}: {error}" if name else str(error)
        complain(message, error.hint or f"try `{_prog(name)} -h`", wrap=True, markdown=markdown)
        return USAGE
    except ForgatherMemError as error:
        complain(str(error), markdown=markdown)
        return FAILURE
    except BrokenPipeError:  # the reader, for example `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def perform(name: str | None, words: Sequence[str], do: Callable[..., int | None] | None = None) -> int:
    """Run a command, or what stands before any, and pass on all that it raises."""
    if name is None:
        parser = CommandParser(_prog(None), _ABOUT, COMMANDS)
        parser.add_argument("--version", action="version", version=__version__, help="Show the version.")
        parser.parse(words)
        raise UsageError("no command was given")
    module = importlib.import_module(f"forgather_mem.cli.{'templates' if name in OF_TEMPLATES else name}")
    command = getattr(module, name)
    parser = CommandParser(_prog(name), command.__doc__ or COMMANDS[name])
    getattr(module, f"{name}_arguments", module.add_arguments)(parser)
    return (do or command)(**parser.parse(words)) or 0


def complain(message: str, hint: str | None = None, *, wrap: bool = False, markdown: bool = False) -> None:
    """Print an error on stderr, the message first, with control characters escaped; on request in 80 columns.

    Where Markdown was asked for it stands on stdout, too: the summary of a job is what is read.
    """
    if markdown:
        from forgather_mem.reporting.markdown import markdown_text

        told = "; ".join(filter(None, (*message.splitlines(), hint)))
        print(shown(f"**Memory could not be judged: {markdown_text(told)}**"))
    text = "forgather-mem: " + message
    if wrap:
        text = textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(shown(text if hint is None else f"{text}\n  {hint}"), file=sys.stderr)


def _meant(name: str) -> str:
    if name.endswith(".py") or os.path.isfile(name):
        return f"to watch it: forgather-mem run {shlex.quote(name)}"
    return did_you_mean(name, [*COMMANDS, *ALIASES]) or "run `forgather-mem --help` for a list"


def _prog(name: str | None) -> str:
    return f"forgather-mem {name}" if name else "forgather-mem"
