"""What `forgather-mem run` and `plan` start: the command behind their options, and what was asked of it.

Without imports: it runs in the parent of `run`, which stays small until the command ends.
"""

from __future__ import annotations

import os
import sys

from forgather_mem.errors import UsageError, did_you_mean, missing
from forgather_mem.telemetry.redaction import redacted_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# Exit codes. Of a command that itself ended with 0: `BROKEN`, a limit is exceeded; `UNDECIDED`, it was not judged.
FAILURE, USAGE, BROKEN, UNDECIDED, INTERRUPTED = 1, 2, 3, 4, 130
OF_PYTHON = ("-m", "-c", "-")  # a command begins with one: no option of ours
# Files that Python reads without a complaint, or with one that does not tell what they are
_NO_SCRIPTS = {
    ".ipynb": "`%load_ext forgather_mem` in the notebook; `jupyter nbconvert --to script` makes a script of it",
    ".json": "`forgather-mem compare` reads plans and reports",
    ".yaml": "give the command that trains with it; `forgather-mem check` reads a template",
}


class Command:
    """The command to execute, and its name.

    Attributes:
        stem: Its name without the ending of a script.
        argv: The command line; its first word is an executable file.
        name: Its name in the report: the script's file name, the module, or the launcher's script.
        script: The same with its folder, as given.
        arguments: The words after it, without their secrets; so are the names.
        is_python: Whether the started process is itself the Python that runs the script.
    """

    def __init__(self, argv: list[str], script: str, arguments: list[str], is_python: bool = True) -> None:
        self.argv = argv
        self.is_python = is_python
        (self.script,) = redacted_argv((script,))
        self.arguments = list(redacted_argv(tuple(arguments)))
        self.name = os.path.basename(self.script.rstrip("/")) or self.script
        stem, ending = os.path.splitext(self.name)
        self.stem = stem if ending in (".py", ".pyc", ".pyz", ".sh") else self.name  # else a part of a module's name


class Arguments:
    """What `run` was asked for, by its options; `cli/run.py` declares these.

    Attributes:
        template: Name of the template to attach; None for the default.
        settings: Its variables, as `key=value`.
        allow: What it may import in addition to the default.
        report: A further path for the report, in addition to its folder.
        fail_on: The verdict that leads to exit code 3; without any verdict it is 4.
        plan: Whether each Trainer is planned before it trains.
        baseline: The file that memory is compared with.
        update_baseline: Whether that file is written instead.
        max_peaks: Place ("host", "gpu0") and size of each `--max-peak`.
        advice_s: How long what would have fitted is planned when memory has run out.
        command: The words of the command.
    """

    template: str | None = None
    settings: Sequence[str] = ()
    allow: Sequence[str] = ()
    report: str | None = None
    fail_on: str | None = None
    plan: bool = False
    baseline: str | None = None
    update_baseline: bool = False
    max_peaks: Sequence[tuple[str, str]] = ()
    advice_s: int = 60
    command: Sequence[str] = ()

    def __init__(self, asked: Mapping[str, object]) -> None:
        vars(self).update(asked)

    @property
    def limits(self) -> list[str]:
        """The options that ask for a judgement, as they were given."""
        given = (("--baseline", self.baseline), ("--fail-on", self.fail_on))
        peaks = [f"--max-peak {where}={size}" for where, size in self.max_peaks]
        return [f"{name} {value}" for name, value in given if value is not None] + peaks


def command_of(words: Sequence[str]) -> Command:
    """What these words run: a Python script, `-m module`, or anything executable.

    Raises:
        UsageError: if it can't be found.
    """
    if not words:
        raise UsageError("no command was given", "give a script, or -m module")
    first, rest = words[0], list(words[1:])
    python = [sys.executable, *_interpreter_options()]
    if first == "-m":
        if not rest or (rest[0].endswith(".py") and os.path.isfile(rest[0])):
            raise UsageError("-m needs the name of a module", "a file goes without -m")
        return Command([*python, "-m", *rest], rest[0], rest[1:])
    if first == "-c" and not rest:
        raise UsageError("-c needs a program")
    if first in OF_PYTHON:
        return Command([*python, first, *rest], first, rest[first == "-c" :])  # a program is no argument
    if first.endswith((".py", ".pyc", ".pyz")) or os.path.isfile(os.path.join(first, "__main__.py")):
        if not os.path.exists(first):
            hint = did_you_mean(first, _scripts_beside(first)) or f"in {os.getcwd()}"
            raise UsageError(f"there is no file {first!r}", "write its words without quotes" if " " in first else hint)
        return Command([*python, first, *rest], first, rest)
    if (executable := _executable(first)) is not None:
        at = num_options(rest, ("-X", "-W")) if os.path.basename(first).rstrip(".0123456789") == "python" else len(rest)
        # A module that is given a script may start it in processes of its own
        starts = rest[at : at + 1] == ["-m"] and any(word.endswith(".py") for word in rest[at + 2 :])
        if at < len(rest) and not starts and (own := command_of(rest[at:])).is_python:
            return Command([executable, *rest[:at], *own.argv[len(python) :]], own.script, own.arguments)
        number = next((number for number, word in enumerate(rest) if word.endswith(".py")), None)
        script, arguments = (first, rest) if number is None else (rest[number], rest[number + 1 :])
        return Command([executable, *rest], script, arguments, is_python=False)
    if os.path.isfile(first):
        if (ending := os.path.splitext(first)[1].replace(".yml", ".yaml")) in _NO_SCRIPTS:
            raise UsageError(f"{first!r} is no Python script", _NO_SCRIPTS[ending])
        return Command([*python, first, *rest], first, rest)
    if "=" in first and first.partition("=")[0].isidentifier():
        raise UsageError(f"{first!r} is no command", f"variables stand before ours: {first} forgather-mem ...")
    near = did_you_mean(first, _scripts_beside(first))
    raise UsageError(f"{first!r} is neither a file nor a command", near or "give a script, -m module, or a command")


def with_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """These variables, by which every Python below us, whatever the launcher, starts with our hook.

    It finds a folder with a sitecustomize.py. An empty entry would mean the current folder.
    """
    site = os.path.join(os.path.dirname(os.path.dirname(__file__)), "launch", "on_path")
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (site, environment.get("PYTHONPATH"))))}


def num_options(words: Sequence[str], with_value: Collection[str]) -> int:
    """How many of the words are options, with their values; what follows is a script, `-m`, `-c`, or a command."""
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] not in OF_PYTHON:
        if words[number] == "--":
            return number + 1
        number += 1 + (words[number] in with_value)
    return number


def _executable(name: str) -> str | None:
    """Where a shell would find it; otherwise beside the running Python, whose environment need not be active."""
    folders = [""] if os.sep in name else [*os.get_exec_path(), os.path.dirname(sys.executable)]
    paths = (os.path.join(folder, name) for folder in folders)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def _interpreter_options() -> list[str]:
    """The options with which this Python was started, such as -X dev or -W error; the script gets them too."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    options = options[:-1]  # our script, or the name of our module
    return options[:-1] if options and options[-1] == "-m" else options


def _scripts_beside(path: str) -> list[str]:
    folder = os.path.dirname(path)
    with missing(OSError):
        return [os.path.join(folder, name) for name in os.listdir(folder or ".") if name.endswith(".py")]
    return []
