"""Telling a process from every other that had or will have its number, by the kernel's clock and not by the wall's.

Next to nothing is imported: the waiting parent of `forgather-mem run` asks here too.
"""

from __future__ import annotations

import os
import sys
import time

from forgather_mem.errors import missing

START_TIME = 22 - 3
"""In `stat_fields`."""


def process_start(pid: int | str = "self") -> str:
    """The boot, the number space and the clock tick in which a process began; "" where the kernel does not tell.

    >>> process_start() == process_start(os.getpid()) != ""
    True
    """
    with missing(OSError, IndexError):
        return f"{boot_id()} {os.readlink(f'/proc/{pid}/ns/pid')} {stat_fields(f'/proc/{pid}')[START_TIME]}"
    return ""


def process_age_s(pid: int | str = "self") -> float | None:
    """Seconds since a process was started or forked, to 10 ms; None where the kernel does not tell.

    >>> 0 <= process_age_s() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    True
    """
    with missing(OSError, IndexError, ValueError, AttributeError):  # no /proc, an odd one, or no such clock
        began_s = int(stat_fields(f"/proc/{pid}")[START_TIME]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    return None


def cpu_s(pid: int) -> float:
    """What a process has computed, with those that it has waited for; 0 where the kernel doesn't tell."""
    with missing(OSError, ValueError):
        return sum(map(int, stat_fields(f"/proc/{pid}")[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def process_header(pid: int, script: str, argv: list[str]) -> dict[str, object]:
    """What a run's header says of any process, training or not: fields of `RunHeader`, the others are of a training.

    >>> process_header(os.getpid(), "train.py", ["--api_key", "k3y"])["argv"]
    ['--api_key', '***']
    """
    # It brings `re`, which who asks for a limit has no use for
    from forgather_mem.telemetry.redaction import redacted_argv

    now_s, age_s = time.time(), process_age_s(pid)
    return {
        "pid": pid, "host": os.uname().nodename, "process": process_start(pid), "script": script,
        "argv": list(redacted_argv(tuple(argv))), "started_s": now_s,
        # Of the kernel's 10 ms the beginning: no process began after now
        "process_started_s": 0.0 if age_s is None else int(100 * (now_s - age_s)) / 100,
    }  # fmt: skip


def is_process_running(pid: int, host: str, start: str) -> bool | None:
    """Whether a process is still there; None when this machine can't know.

    Args:
        pid: Its number.
        host: The name of its machine.
        start: What `process_start` gave for it then.

    >>> is_process_running(os.getpid(), os.uname().nodename, process_start())
    True
    """
    if host != os.uname().nodename or not os.path.isdir("/proc/self"):
        return None
    then, here = start.split(" "), process_start().split(" ")
    if start and then[0] != here[0]:
        return False  # the machine has been started anew
    if start and then[1:2] != here[1:2]:
        return None  # in another container numbers mean other processes
    with missing(OSError, IndexError):
        fields = stat_fields(f"/proc/{pid}")
        if fields[0] != "Z" and (not start or fields[START_TIME] == then[-1]):
            return True if start else None
    return False


def stat_fields(process: object) -> list[str]:
    """The fields behind the name of the process with this folder under /proc: proc_pid_stat(5), from the third on."""
    with open(f"{process}/stat", "rb") as file:
        # Two fields stand before the closing parenthesis of the name, which may itself hold anything
        return file.read().rpartition(b")")[2].decode(errors="replace").split()


def boot_id(proc_root: str = "/proc") -> str:
    """Which boot this is; "" where the kernel does not tell."""
    with missing(OSError), open(f"{proc_root}/sys/kernel/random/boot_id", errors="replace") as file:
        return file.read().strip()
    return ""


def what_runs() -> str:
    """The script as it was given; the module of `python -m module`, whose file Python puts into its place."""
    given = sys.argv[0] if sys.argv else ""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.origin != given or spec.name == "__main__":  # the last of a folder or an archive
        # At "-m" Python still looks for the module, and imports the package above it
        return sys.orig_argv[-len(sys.argv)] if given == "-m" else given
    return str(spec.name).removesuffix(".__main__")


def loaded_versions() -> dict[str, str]:
    """Of Python, and of the packages that memory depends on, as far as they have been imported."""
    names = ("forgather_mem", "torch", "transformers", "accelerate")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    versions = {name: str(version) for name, version in found.items() if version is not None}
    return {"python": ".".join(map(str, sys.version_info[:3])), **versions}
