"""What every command of the library takes to answer to one template: CPU time, memory, and how it ended.

Each template is tried in a forked child, so that no case helps or hurts the next one. The parent has imported all
that loading needs; what counts is what the template itself makes a command take.
"""

import contextlib
import gc
import io
import json
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 2**20
MAX_CPU_S = 1.0
MAX_GROWN_MIB = 200
MAX_CHARS = 2_500
KILL_CPU_S = 20
KILL_BYTES = 1024 * MIB
COMMANDS = {
    "pp": ["pp"],
    "pp --debug": ["pp", "--debug"],
    "graph": ["graph"],
    "targets": ["targets"],
    "trefs": ["trefs"],
    "check": ["check"],
}

EVERY = (*COMMANDS, "construct")


def warm_up() -> None:
    """Import all that the commands need, once, in the parent."""
    with tempfile.TemporaryDirectory() as folder:
        text = "-- set x = 1\na: !call:list [[{{ x }}, {{ [y]|tojson }}]]\nb: !call:datetime:timedelta {hours: 1}\n"
        Path(folder, "t.yaml").write_text(text + "c: !call:random:Random [1]\nd: !call:pathlib:Path [x]\n")
        os.chdir(folder)
        with _quiet():
            for words in COMMANDS.values():
                _command([*words, "t.yaml", "--set", "y=2"])
            _construct("t.yaml", {"y": 2})
    os.chdir("/")
    gc.collect()
    gc.freeze()  # so that a child's collections copy nothing


def answer(
    text: str,
    variables: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    commands: Sequence[str] = EVERY,
) -> dict[str, Any]:
    """How each command answered: `end`, `message`, `cpu_s`; and `grown_mib`, the peak over all of them."""
    found, status = forked(lambda: _attempt(text, variables or {}, files or {}, commands))
    if found is not None:
        return dict(found)
    killed = signal.Signals(status & 0x7F).name if status & 0x7F else "os._exit"
    return {"commands": {"all": {"end": f"killed by {killed}", "message": "", "cpu_s": KILL_CPU_S}}, "grown_mib": 0}


def forked(work: Callable[[], Any]) -> tuple[Any, int]:
    """What a function gives in a fork of this process, None if the fork was killed; and the fork's status."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return (json.loads(said) if said else None), status


def corpus() -> list[dict[str, Any]]:
    """What was found so far."""
    import yaml

    return yaml.load((Path(__file__).parent / "bounds.yaml").read_text(), yaml.CSafeLoader)


def written_out(case: Mapping[str, Any]) -> str:
    """The text of a case of a corpus, which may have `variables` besides: `<X>` stands for as many copies of a unit as
    `repeat` says, `{i}` in it for the number of the copy."""
    text: str = case["text"]
    for key, (unit, count) in case.get("repeat", {}).items():
        copies = (unit.replace("{i}", str(i)) for i in range(count)) if "{i}" in unit else [unit * count]
        text = text.replace(f"<{key}>", "".join(copies))
    return text


def faults(answered: Mapping[str, Any], max_cpu_s: float = MAX_CPU_S) -> list[str]:
    """What of an answer is not as promised."""
    found = []
    for name, command in answered["commands"].items():
        if command["end"] not in ("ok", "TemplateError"):
            found.append(f"{name} ended in {command['end']}: {command['message'][-1500:]}")
        elif command["cpu_s"] > max_cpu_s:
            found.append(f"{name} took {command['cpu_s']:.2f} s of CPU ({command['end']}: {command['message'][:200]})")
        if command["end"] == "TemplateError":
            message = command["message"]
            if len(message) > MAX_CHARS or not all(char.isprintable() or char == "\n" for char in message):
                found.append(f"{name} says what it should not: {message!r:.200}")
    if answered["grown_mib"] > MAX_GROWN_MIB:
        found.append(f"memory grew by {answered['grown_mib']:.0f} MiB ({answered.get('grown_by')})")
    return found


def _attempt(text: str, given: Mapping[str, Any], files: Mapping[str, str], wanted: Sequence[str]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_CPU, (KILL_CPU_S, KILL_CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + KILL_BYTES, -1))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, content in {"t.yaml": text, **files}.items():
            Path(name).write_text(content, "utf-8")
        settings = [word for key, value in given.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        base = status("VmRSS")
        commands, grown = {}, {}
        runs: dict[str, Callable[[], object]] = {
            name: lambda words=words: _command([*words, "t.yaml", *settings]) for name, words in COMMANDS.items()
        }
        runs["construct"] = lambda: _construct("t.yaml", given)
        for name in wanted:
            gc.collect()  # each command is a process of its own, and leaves the next one nothing
            began_s = time.thread_time()
            end, message = _ended(runs[name])
            commands[name] = {"end": end, "message": message[:4000], "cpu_s": round(time.thread_time() - began_s, 4)}
            grown[name] = round((status("VmHWM") - base) / MIB)
        os.chdir("/")
    return {"commands": commands, "grown_mib": (status("VmHWM") - base) / MIB, "grown_by": grown}


def _ended(run: Callable[[], object]) -> tuple[str, str]:
    from forgather_mem.errors import TemplateError

    try:
        with _quiet():
            run()
        return "ok", ""
    except TemplateError as error:
        return "TemplateError", str(error)
    except BaseException as error:
        return type(error).__name__, "".join(traceback.format_exception(error))


def _command(words: list[str]) -> None:
    """One command as `forgather-mem` runs it, its errors passed on."""
    from forgather_mem.cli.app import perform

    with contextlib.suppress(SystemExit):
        perform(words[0], words[1:])


def _construct(name: str, variables: Mapping[str, Any]) -> object:
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy

    return ConfigEnvironment(".", policy=Policy()).load(name, **variables).construct()


@contextlib.contextmanager
def _quiet() -> Any:
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def status(key: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key + ":"))
