"""The command line of `forgather-mem run`; the command itself is in `launch`.

Parsed by hand, without imports: it runs in the parent, which stays small until the command ends.
"""

from __future__ import annotations

import os
import sys

from forgather_mem.errors import UsageError, did_you_mean
from forgather_mem.telemetry.redaction import redacted_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forgather_mem.cli.parser import CommandParser

VERDICTS = ("leak",)
# Exit codes of a command that itself ended with 0: a limit is exceeded; a limit was not judged.
BROKEN, UNDECIDED = 3, 4
_OF_PYTHON = ("-m", "-c", "-")
_OF_SCRIPTS = (".py", ".pyc", ".pyz", ".sh")
_OF_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
OTHERS_OPTIONS = "options of the command come after it; for ours try `forgather-mem {} -h`"
LIKE_AN_OPTION = 0.7  # all begin alike
_HELP = ("-h", "--help")


class Option:
    """An option of the command; `--help` is made from it.

    Attributes:
        field: The attribute of `Arguments` that it fills.
        metavar: What stands for the value in the help; empty for an option without one.
        text: What the help says, one line.
        take: Checks a value and gives what is kept of it; raises UsageError.
        repeats: Whether it may be given several times: the field is then a list.
    """

    __slots__ = ("field", "metavar", "repeats", "take", "text")

    def __init__(
        self, field: str, metavar: str, text: str, take: Callable[[str], object], *, repeats: bool = False
    ) -> None:
        self.field, self.metavar, self.text = field, metavar, text
        self.take, self.repeats = take, repeats


def _template(value: str) -> str:
    # The command may change its working directory before it trains
    return os.path.abspath(value) if os.path.isfile(value) else value


def _setting(value: str) -> str:
    if "=" not in value:
        raise UsageError(f"--set {value!r} must be KEY=VALUE, for example lr=1e-4")
    return value


def _json_file(option: str) -> Callable[[str], str]:
    def take(value: str) -> str:
        if not value.endswith(".json") or not os.path.isdir(os.path.dirname(value) or "."):
            raise UsageError(f"{option} {value!r}: give a file that ends in .json, in a folder that exists")
        return os.path.abspath(value)

    return take


def _verdict(value: str) -> str:
    if value not in VERDICTS:
        raise UsageError(f"--fail-on {value!r}: the only value is {', '.join(VERDICTS)}")
    return value


def _max_peak(value: str) -> tuple[str, str]:
    where, equals, size = value.partition("=")
    if not equals or not (where == "host" or (where.startswith("gpu") and where[3:].isdigit())):
        raise UsageError(f"--max-peak {value!r}: write host=8GiB or gpu0=40GiB")
    return where, size


OPTIONS = {
    "--template": Option("template", "NAME", "The callbacks that watch. Default: callbacks/watch.yaml.", _template),
    "--set": Option("settings", "KEY=VALUE", "A variable of the template.", _setting, repeats=True),
    "--allow": Option("allow", "NAME", "A module that the template may use.", str, repeats=True),
    "--report": Option("report", "OUT.json", "Write the report to this file, too.", _json_file("--report")),
    "--fail-on": Option(
        "fail_on", "leak", "Exit with 3 when the report finds a leak, with 4 when it can't tell.", _verdict
    ),
    "--plan": Option("plan", "", "Plan the Trainer's memory before it trains; the report compares.", str),
    "--baseline": Option(
        "baseline",
        "FILE.json",
        "Exit with 3 when memory has grown since that file was written.",
        _json_file("--baseline"),
    ),
    "--update-baseline": Option("update_baseline", "", "Write what this run takes to the file of --baseline.", str),
    "--max-peak": Option(
        "max_peaks", "host=SIZE|gpu0=SIZE", "Exit with 3 when the peak was higher.", _max_peak, repeats=True
    ),
}


def add_arguments(parser: CommandParser) -> None:
    for name, option in OPTIONS.items():
        text = f"{option.text} Repeatable." if option.repeats else option.text
        if not option.metavar:
            parser.add_argument(name, action="store_true", help=text)
        else:
            parser.add_argument(name, metavar=option.metavar, help=text)
    parser.add_command("A script, -m module, torchrun, ..., with its own options.")


def run() -> None:
    """Watch any training command, unchanged, and report where the memory went.

    Its exit code, signals and output stay its own. The report goes to stderr.

    FORGATHER_MEM=0 switches the watching off; files go below FORGATHER_MEM_DIR.
    """
    raise AssertionError("__main__ runs this command, before it imports any other")


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

    __slots__ = ("arguments", "argv", "is_python", "name", "script", "stem")

    def __init__(self, argv: list[str], script: str, arguments: list[str], is_python: bool = True) -> None:
        self.argv = argv
        self.is_python = is_python
        (self.script,) = redacted_argv((script,))
        self.arguments = list(redacted_argv(tuple(arguments)))
        self.name = os.path.basename(self.script.rstrip("/")) or self.script
        stem, ending = os.path.splitext(self.name)
        self.stem = stem if ending in _OF_SCRIPTS else self.name  # else a part of a module's name


class Arguments:
    """The options, and the command after them.

    Attributes:
        template: Name of the template to attach; None for the default.
        settings: Its variables, as `key=value`.
        allow: What it may import in addition to the default.
        report: A further path for the report, in addition to its folder.
        fail_on: The verdict that leads to exit code 3; without any verdict it is 4.
        help: Whether only the help is wanted.
        plan: Whether each Trainer is planned before it trains.
        baseline: The file that memory is compared with.
        update_baseline: Whether that file is written instead.
        max_peaks: Place ("host", "gpu0") and size of each `--max-peak`.
        words: The words of the command.
    """

    __slots__ = (
        "allow", "baseline", "fail_on", "help", "max_peaks", "plan", "report", "settings", "template",
        "update_baseline", "words",
    )  # fmt: skip

    def __init__(self, words: Sequence[str]) -> None:
        self.template: str | None = None
        self.settings: list[str] = []
        self.allow: list[str] = []
        self.report: str | None = None
        self.fail_on: str | None = None
        self.help: bool = False
        self.plan: bool = False
        self.update_baseline: bool = False
        self.baseline: str | None = None
        self.max_peaks: list[tuple[str, str]] = []
        rest = list(words)
        while rest and rest[0].startswith("-") and not begins_command(rest[0]):
            word = rest.pop(0)
            if word == "--":
                break
            if word in _HELP:
                self.help = True
                break
            name, equals, value = word.partition("=")
            option = OPTIONS.get(name)
            if option is None:
                raise UsageError(
                    f"there is no option {name!r}",
                    did_you_mean(name, OPTIONS, LIKE_AN_OPTION) or OTHERS_OPTIONS.format("run"),
                )
            if not option.metavar:
                if equals:
                    raise UsageError(f"{name} takes no value")
                setattr(self, option.field, True)
                continue
            if not equals:
                if not rest:
                    raise UsageError(f"{name} needs a value: {name} {option.metavar.replace('|', ' or ')}")
                value = rest.pop(0)
            taken = option.take(value)
            if option.repeats:
                getattr(self, option.field).append(taken)
            else:
                setattr(self, option.field, taken)
        self.words = rest
        if not self.help:
            self._find_baseline()

    @property
    def limits(self) -> list[str]:
        """The options that ask for a judgement, as they were given."""
        given = (("--baseline", self.baseline), ("--fail-on", self.fail_on))
        peaks = [f"--max-peak {where}={size}" for where, size in self.max_peaks]
        return [f"{name} {value}" for name, value in given if value is not None] + peaks

    def _find_baseline(self) -> None:
        if self.update_baseline and self.baseline is None:
            raise UsageError("--update-baseline needs --baseline FILE.json, the file to write")
        if self.baseline is not None:
            self.plan = True  # which counts each tensor
            if not self.update_baseline and not os.path.exists(self.baseline):
                raise UsageError(f"there is no file {self.baseline!r}", "--update-baseline writes it")
            if os.path.exists(self.baseline) and not _may_be_baseline(self.baseline):
                raise UsageError(f"{self.baseline!r} is no baseline", "name another file, or delete it")


def _may_be_baseline(path: str) -> bool:
    """Whether a file looks like one, or is empty: known before the training, and nobody's settings are written over."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return False
    with open(path, "rb") as file:
        start = file.read(2**12)
    return not start.strip() or b'"allowed_growth"' in start


def begins_command(word: str) -> bool:
    """Whether a word with a hyphen is Python's, and no option of ours."""
    return word in _OF_PYTHON or _names_module(word)


def _names_module(word: str) -> bool:
    """Whether it is `-mpackage.module`, in one word."""
    return word.startswith("-m") and bool(word[2:]) and all(part.isidentifier() for part in word[2:].split("."))


def command_of(words: Sequence[str]) -> Command:
    """What these words run: a Python script, `-m module`, or anything executable.

    Raises:
        UsageError: if it can't be found.
    """
    if not words:
        raise UsageError("no command was given", "give a script, -m module, torchrun, accelerate launch, ...")
    if _names_module(words[0]):
        words = ["-m", words[0][2:], *words[1:]]
    first, rest = words[0], list(words[1:])
    python = [sys.executable, *_interpreter_options()]
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        return Command([*python, "-m", *rest], rest[0], rest[1:])
    if first == "-c" and not rest:
        raise UsageError("-c needs a program")
    if first in _OF_PYTHON:
        return Command([*python, first, *rest], first, rest[first == "-c" :])  # a program is no argument
    if first.endswith((".py", ".pyc", ".pyz")) or os.path.isfile(os.path.join(first, "__main__.py")):
        if not os.path.exists(first):
            raise UsageError(
                f"there is no file {first!r}", did_you_mean(first, _scripts_beside(first)) or f"in {os.getcwd()}"
            )
        return Command([*python, first, *rest], first, rest)
    executable = _executable(first)
    if executable is not None:
        number = next((number for number, word in enumerate(rest) if word.endswith(".py")), None)
        script, arguments = (first, rest) if number is None else (rest[number], rest[number + 1 :])
        return Command([executable, *rest], script, arguments, is_python=False)
    if os.path.isfile(first):
        if first.endswith(_OF_CONFIGURATIONS):
            raise UsageError(f"{first!r} is a configuration, not a script", "put the command of its trainer before it")
        return Command([*python, first, *rest], first, rest)
    raise UsageError(f"{first!r} is neither a file nor a command", "give a script, -m module, or a command")


def _executable(name: str) -> str | None:
    """Where a shell would find it; otherwise beside the running Python, whose environment need not be active."""
    if os.sep in name:
        return name if os.path.isfile(name) and os.access(name, os.X_OK) else None
    for folder in [*os.get_exec_path(), os.path.dirname(sys.executable)]:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _interpreter_options() -> list[str]:
    """The options with which this Python was started, such as -X dev or -W error; the script gets them too."""
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    options = options[:-1]  # our script, or the name of our module
    return options[:-1] if options and options[-1] == "-m" else options


def _scripts_beside(path: str) -> list[str]:
    folder = os.path.dirname(path)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder or ".") if name.endswith(".py")]
    except OSError:
        return []
