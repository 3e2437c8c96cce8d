"""`forgather-mem run`: starts the command, waits without growing, and reports what it saw.

Until the command has ended, only the smallest parts of the standard library are imported: the 12 MiB are missing from
the training. The modules for reports are imported after that.
"""

from __future__ import annotations

import marshal
import os

from forgather_mem.cli.command import OF_PYTHON, UNDECIDED, USAGE, Arguments, Command, command_of, with_hook
from forgather_mem.errors import UsageError, missing, say
from forgather_mem.formats.ring_memory import PLACE as STATES
from forgather_mem.formats.ring_memory import StateMemory
from forgather_mem.launch.sampler import Sampler
from forgather_mem.launch.session_folder import PLACE, SessionFolder
from forgather_mem.launch.short_runs import asks_for_help, is_worth_a_report
from forgather_mem.launch.waiting import Child, Ended, end_like, execute_or_complain
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOK_EVERY_S = 1.0
# All options of ours: behind a script they are its own, and hardly meant so where its text has none of them
_OURS = (
    "--template", "--set", "--allow", "--report", "--fail-on", "--plan", "--baseline", "--update-baseline",
    "--max-peak", "--advice-s",
)  # fmt: skip


def run_command(words: Sequence[str]) -> int:
    """Run `forgather-mem run WORDS...`; returns the exit code of the command, or of the user's limits if that is 0."""
    code = 0
    asked: Mapping[str, object] = {"command": words}
    if words[:1] and words[0].startswith("-") and words[0] not in OF_PYTHON:
        code, asked = _read(words)
    if not asked:
        return code
    arguments = Arguments(asked)
    try:
        command = command_of(arguments.command)
    except UsageError as error:
        say(f"forgather-mem: run: {error}\n  {error.hint or 'try `forgather-mem run -h`'}")
        return USAGE
    if run_session.is_off() and not arguments.limits:
        return execute_or_complain(command.argv, os.environ)
    if run_session.is_off():
        ended = Child(command.argv, os.environ).wait(lambda: None, LOOK_EVERY_S)
        say(f"forgather-mem: {_not_judged(arguments)}: {run_session.SWITCH} switches all watching off")
        return end_like(ended) or UNDECIDED
    folder = SessionFolder(command.stem)
    if not asks_for_help(command):
        how = "your run is not changed" if arguments.template is None else f"with {arguments.template}"
        words = [word.partition("=")[0] for word in command.arguments]
        behind = [name for name in words if name in _OURS and name not in _text_of(command.script)]
        given = f" {behind[0]} goes to {command.name}, behind which it stands; for us it goes before." if behind else ""
        say(f"forgather-mem: watching {command.name}; {how}. Report at the end.{given}")
        if folder.problem is not None:
            say(f"forgather-mem: {_instead(folder)}")
    states = StateMemory()
    environment = _environment(arguments, folder.path) | {STATES: states.place}
    if folder.path and folder.problem and PLACE in environment:  # the trainings find another place, too
        environment[PLACE] = folder.path
    child = Child(command.argv, environment)
    sampler = Sampler(folder.path, child.pid, command)
    ended = child.wait(sampler.look, LOOK_EVERY_S)
    code = _judged(folder, states, arguments, command, ended, sampler)
    return end_like(ended) or code


def _judged(
    folder: SessionFolder, states: StateMemory, arguments: Arguments, command: Command, ended: Ended, sampler: Sampler
) -> int:
    """What the limits of the user come to, once all is told: without a judgement `UNDECIDED`, whatever has failed."""
    code = UNDECIDED if arguments.limits else 0
    try:
        sampler.end(ended)
        if folder.path is not None:
            trainings = run_session.registered(folder.path)
            states.settle([*[run_session.kept_of(folder.path, training) for training in trainings], *trainings])
        if is_worth_a_report(folder.path, arguments, command, ended):
            from forgather_mem.launch.outcome import report_outcome

            return report_outcome(folder, arguments, command, ended, sampler)
        folder.remove()  # there is nothing to tell
        if not asks_for_help(command):
            say(f"forgather-mem: no report: {command.name} ended after {ended.wall_s:.1f} s, with no step of torch")
    except (Exception, KeyboardInterrupt) as error:
        from forgather_mem.telemetry.guard import FailureGuard

        if isinstance(error, Exception) and not FailureGuard().keeps("the report", error):
            raise
        if code:
            say(f"forgather-mem: {_not_judged(arguments)}: there is no report ({type(error).__name__})")
    finally:
        folder.close()
    return code


def _text_of(script: str) -> str:
    """Of its file; "" of a module, and of a pipe, which the script's own Python has to read."""
    with missing(OSError), open(script if os.path.isfile(script) else "", errors="replace") as file:
        return file.read()
    return ""


def _not_judged(arguments: Arguments) -> str:
    return f"can't tell about {', '.join(arguments.limits)}"


def _instead(folder: SessionFolder) -> str:
    if folder.path is not None:
        return f"our files are in {folder.path}: can't write {folder.problem}"
    return f"no folder for our files ({folder.problem}): the report is of what is seen from outside; set {PLACE}"


def _read(words: Sequence[str]) -> tuple[int, Mapping[str, object]]:
    """The values of our options, read and checked in a process that ends before the command starts, and its exit code.

    There are none after `--help`, and where something is wrong, which has been said then.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            from forgather_mem.launch.checking import read

            os.close(reader)
            code = read(words, writer)
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as file:
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, marshal.loads(told) if told and not code else {}


def _environment(arguments: Arguments, folder: str | None) -> dict[str, str]:
    environment = with_hook(os.environ)
    environment[run_session.FOLDER] = folder or ""  # there also without a place: the sign that Trainers are watched
    for option, name in run_session.OPTIONS.items():
        environment.pop(name, None)
        if value := getattr(arguments, option):
            environment[name] = str(value) if isinstance(value, str | int) else "\n".join(value)
    return environment
