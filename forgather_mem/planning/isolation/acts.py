"""What a process does to what is outside it: files that it changes, programs that it starts, whom it calls.

Python tells of each such call before it is done, by an audit event. A script's are noted until it is planned; what is
planned acts on nothing. Little is imported: a script has not begun yet.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Lines = dict[str, str]  # each once, with the first that it would do
ON_NOTHING = "a plan acts on nothing"
_MAKES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_EXCL
ACTS = ("open", "os.", "pty.", "socket.", "subprocess.", "syslog.")  # the other events change nothing outside
_HARMLESS = (
    "os.chdir", "os.fork", "os.fwalk", "os.getxattr", "os.listdir", "os.listxattr", "os.lockf", "os.putenv",
    "os.scandir", "os.unsetenv", "os.walk", "socket.__new__", "socket.gethostname", "socket.getservbyname",
)  # fmt: skip
_IN_FOLDERS = ("os.mkdir", "os.remove", "os.rmdir")  # which may be given by number
_CHANGING = (
    "chmod", "chown", "lchown", "link", "mkdir", "remove", "removexattr", "rename", "replace", "rmdir", "setxattr",
    "symlink", "truncate", "unlink", "utime",
)  # fmt: skip
_LANDLOCK = 444  # its three system calls have one number after the other, on all machines
_NO_NEW_PRIVILEGES = 38
_RUN, _WRITE, _CHANGE_FOLDERS, _LINK, _TRUNCATE = 1, 2, 0x1FF0, 0x2000, 0x4000


def acted_on(event: str, arguments: tuple[Any, ...]) -> list[str] | None:
    """What the call of an audit event of `ACTS` changes, starts or calls, as far as it has names.

    None if it does nothing outside.
    """
    if event in _HARMLESS:
        return None
    if event == "open":
        if not (isinstance(arguments[2], int) and arguments[2] & (_MAKES | os.O_RDWR)):
            return None
        arguments = arguments[:1]
    named = [one for one in arguments if isinstance(one, str | bytes | tuple | os.PathLike)]
    names = [":".join(map(str, one[:2])) if isinstance(one, tuple) else os.fsdecode(one) for one in named]
    if event in _IN_FOLDERS and arguments[-1] >= 0:
        names = [os.path.join(os.readlink(f"/proc/self/fd/{arguments[-1]}"), *names)]
    if (event == "open" and names in ([], [os.devnull])) or (event == "os.mkdir" and os.path.exists(names[0])):
        return None  # a file that is open; a folder that is there, as will be told
    return names


def act_on_nothing(not_done: Lines, scratch: str) -> None:
    """Let this process change nothing outside, for good, nor those that it forks; the lines that would are noted.

    Files are read. Who changes files is not told: what is written goes to the null device. The rest is refused by a
    PermissionError. Libraries that don't ask Python are held by the kernel where it has Landlock (Linux 5.13).

    Args:
        not_done: Gets the lines.
        scratch: A folder where everything is done.
    """
    from forgather_mem.planning.private_state import replace
    from forgather_mem.source.source_lines import calling_place, line_with_text

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if not event.startswith(ACTS) or (event == "os.truncate" and isinstance(arguments[0], int)):
            return  # asked of all that Python does, as `id`; an open file is this process's own
        names = acted_on(event, arguments)
        if names is not None and not (names and all(name.startswith(scratch) for name in names)):
            if event == "os.mkdir":
                made.add(os.path.abspath(names[0]))
            what, where = " ".join([event, *map(repr, names)]), calling_place()
            not_done.setdefault(line_with_text(*where) if where is not None else "a line of a library", what)
            raise PermissionError(f"{what}: {ON_NOTHING}")

    by_name, by_number = open, os.open
    made, empty = set[str](), os.path.join(scratch, "empty")  # folders that would be there
    os.mkdir(empty)

    def opened(file: Any, mode: str = "r", *more: Any, **keywords: Any) -> Any:
        try:
            return by_name(file, mode, *more, **keywords)
        except PermissionError:
            if "r" in mode:
                return by_name(file, mode.replace("+", ""), *more, **keywords)
            return by_name(nowhere("+" in mode), mode.replace("x", "w"), *more, **keywords)

    def opened_by_number(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        try:
            return by_number(path, flags, mode, dir_fd=dir_fd)
        except PermissionError:
            return nowhere(flags & os.O_RDWR > 0) if flags & _MAKES else by_number(path, os.O_RDONLY)

    def nowhere(is_read: bool) -> int:
        return os.memfd_create("plan") if is_read else by_number(os.devnull, os.O_RDWR)

    def skipped(change: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **keywords: object) -> None:
            with suppress(PermissionError):
                change(*arguments, **keywords)

        return call

    def listing(lists: Callable[[object], object]) -> Callable[..., object]:
        return lambda path=None: lists(empty if os.path.abspath(str(path)) in made else path)

    def writing(writer: Callable[..., object]) -> object:
        return lambda file, *more, **how: writer(opened(file, "wb") if isinstance(file, str) else file, *more, **how)

    sys.dont_write_bytecode = True
    _hold_by_the_kernel(scratch)
    replace("torch._C:PyTorchFileWriter", writing, [])  # it doesn't ask Python
    for module in (builtins, io, sys.modules["_io"]):
        vars(module)["open"] = opened
    vars(os).update({name: listing(vars(os)[name]) for name in ("listdir", "scandir")})
    vars(os).update({"open": opened_by_number, **{name: skipped(vars(os)[name]) for name in _CHANGING}})
    sys.addaudithook(look)


def _hold_by_the_kernel(scratch: str) -> None:
    """Let the kernel refuse files, programs, connections by TCP and signals, as far as its version knows how."""
    import ctypes
    import struct

    call = ctypes.CDLL(None).syscall
    version = call(_LANDLOCK, None, 0, 1)
    files = _RUN | _WRITE | _CHANGE_FOLDERS | _LINK * (version > 1) | _TRUNCATE * (version > 2)
    rules = struct.pack("QQQ", files, 3 * (version > 3), 3 * (version > 5))
    ruleset = call(_LANDLOCK, rules, len(rules), 0)
    for path in (scratch, "/dev/shm", os.devnull):  # the second has semaphores
        with suppress(OSError):
            allowed = files & (_WRITE | _TRUNCATE if path == os.devnull else ~_RUN)
            call(_LANDLOCK + 1, ruleset, 1, struct.pack("=Qi", allowed, os.open(path, os.O_PATH)), 0)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(_LANDLOCK + 2, ruleset, int(version > 6))  # by the 7th it would fill the machine's log
