"""Run folders as an enemy, a failing disk or a newer version may leave them, and what `report` makes of them.

A few of each kind in `make test`, all of them in `make soak`. Also a program: it imports the command line once and runs
each command that it is asked for in a fork of itself, so that a case takes milliseconds and its size can be measured.
"""

import contextlib
import copy
import io
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from forgather_mem.formats import ring_writer as layout

ROOT = Path(__file__).parent.parent
MODES = ("text", "json", "html", "markdown")
# What a terminal, the runner of a workflow and a page of Markdown would obey
OBEYED = (
    "\n::error::x\r\n  ::add-mask::y ##[group]z ##vso[task.prependpath]z \x1b]52;c;ZWNobyBvd25lZA==\x07\x1b[2J\x9b2J"
    "\x85\u202e\u2028\x7f\ud800 @victim https://evil.example www.evil.example #1 GH-2 <b> ![a](b) [c](d) | `x` ``` # h"
)
MAX_CPU_S, MAX_BYTES = 2.0, 300 * 2**20
_MAX_WAIT_S = 60  # a command that waits for something; on a busy machine one that does not may take long, too
_ADDRESSES_BYTES = 3 << 30

Make = Callable[[Path], None]
"""Changes a copy of a real run's folder."""


class Outcome(NamedTuple):
    code: int
    printed: str
    cpu_s: float
    peak_bytes: int


class Reporter:
    """`forgather-mem report`, and any other command, in forks of a small process."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__)), "serve"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, folder: Path, mode: str) -> Outcome:
        page = folder.parent / "page.html"
        page.unlink(missing_ok=True)
        options = {"text": [], "html": ["--html", str(page)]}.get(mode, [f"--{mode}"])
        outcome = self.answer(["report", str(folder), *options], folder.parent / "printed")
        return outcome._replace(printed=outcome.printed + (page.read_bytes().decode() if page.exists() else ""))

    def answer(self, argv: list[str], printed: Path) -> Outcome:
        self._server.stdin.write(json.dumps({"argv": argv, "to": str(printed)}) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Outcome(answer["code"], printed.read_bytes().decode(), *answer["used"])

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._server.stdout.close()


def check(reporter: Reporter, folder: Path, mode: str) -> Outcome:
    """Run the command, and refuse what it must not do whatever stands in the folder."""
    outcome = reporter.run(folder, mode)
    assert outcome.code in (0, 1), f"{outcome.code}: {outcome.printed[-3000:]}"
    assert "Traceback" not in outcome.printed, outcome.printed[-3000:]
    assert_obeyed_by_nobody(outcome.printed)
    if mode == "json" and outcome.code == 0:
        json.loads(outcome.printed[outcome.printed.index("{\n") :], parse_constant=lambda word: 1 / 0)
    assert outcome.cpu_s < MAX_CPU_S, f"{outcome.cpu_s:.1f} s of CPU: {outcome.printed[-300:]}"
    assert outcome.peak_bytes < MAX_BYTES, f"{outcome.peak_bytes / 2**20:,.0f} MiB: {outcome.printed[-300:]}"
    return outcome


def assert_obeyed_by_nobody(text: str) -> None:
    """By no terminal, and by no runner of GitHub's or Azure's workflows."""
    raw = {c for c in text if not c.isprintable()} - {"\n"}
    assert not raw, f"{raw} in {text[-3000:]!r}"
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or re.search(r"##(vso)?\[", line)]


def assert_nothing_but_text(markdown: str) -> None:
    """No element, mention, reference or address in a page of Markdown."""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        for part in [token, *(token.children or ())]:
            assert part.type not in ("html_block", "html_inline", "link_open", "image", "heading_open", "hr"), part
            active = part.type == "text" and re.search(r"@\w|#\d|GH-\d|://|www\.", part.content)
            assert not active, part.content


# ---- a file is something else ----

FILES = ("report.json", "report.rank0.json", "memory.rank0.jsonl", "ring.rank0", "events.out.tfevents.1.a.1.0")


def _socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(path.parent):  # its name has to be short
        server.bind(path.name)
    server.close()


def _of(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def _large_and_empty(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _one_long_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"type":"sample","values":{"' + b"x" * 2**20)
        file.truncate(1 << 30)


THINGS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a socket": _socket,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a file": lambda path: path.symlink_to("/etc/passwd"),
    "a terabyte of nothing": _large_and_empty,
    "one long line": _one_long_line,
    "nothing": _of(b""),
    "zeros": _of(bytes(200_000)),
    "noise": lambda path: _of(random.Random(path.name).randbytes(200_000))(path),
    "lines of noise": _of(b"{\n" * 3_000_000),
    "bad UTF-8": _of(b'{"schema": 1, "run": {"script": "\xff\xfe"}}'),
    "a deep list": _of(b"[" * 1_000_000),
    "a list of lists": _of(b'{"schema":1,"run":{},"x":[' + b"[]," * 1_200_000 + b"[]]}"),
    "nested tables": _of(b'{"schema":1,"run":{},"x":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"),
    "a long number": _of(b'{"schema":1,"run":{},"steps":' + b"9" * 100_000 + b"}"),
    "two of each key": _of(b'{"schema":1,"run":{},"run":{"argv":3},"steps":1,"steps":"x"}'),
    "only a schema": _of(b'{"schema":1,"run":{}}'),
}


def replaced(file: str, thing: str) -> Make:
    def make(folder: Path) -> None:
        for name in FILES if file == "all" else (file,):
            (folder / name).unlink(missing_ok=True)
            THINGS[thing](folder / name)
        before = {FILES[0]: (), FILES[4]: FILES[:4], "all": ()}.get(file, ("report.json",))
        for name in before:  # they are read in its stead
            (folder / name).unlink(missing_ok=True)

    return make


# ---- a value is something else ----

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**18 + 1, -(10**18), 10**400, 1e308, float("nan"), float("-inf"), 5e-324, "", " ",
    "\x1b]0;mine\x07", "\u202e\n\r\t", "\ud800", "x" * 30_000, [], {}, [[]], [{}], [None], {"a": 1}, {"": ""},
    {"\x1b[2J": "\x1b[2J"}, ["\x1b[31m"] * 3,
)  # fmt: skip


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each part of a JSON value; of the rows of a list the first."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from paths_in(part, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths_in(value[0], (*path, 0))


def with_value(whole: Any, path: tuple[str | int, ...], value: Any) -> Any:
    changed = copy.deepcopy(whole)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return changed


def with_texts(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """The same JSON, in which each text is one to obey, but for those below these keys."""
    if isinstance(value, dict):
        return {key: part if key in keep else with_texts(part, keep) for key, part in value.items()}
    if isinstance(value, list):
        return [with_texts(part, keep) for part in value]
    return OBEYED if isinstance(value, str) else value


def report_with(path: tuple[str | int, ...], value: Any) -> Make:
    def make(folder: Path) -> None:
        report = json.loads((folder / "report.json").read_bytes())
        (folder / "report.json").write_text(json.dumps(with_value(report, path, value)))

    return make


def line_with(number: int, path: tuple[str | int, ...], value: Any) -> Make:
    """One line of the log is changed; nothing else is left."""

    def make(folder: Path) -> None:
        log = folder / "memory.rank0.jsonl"
        lines = log.read_bytes().splitlines(True)
        changed = with_value(json.loads(lines[number]), path, value)
        lines[number] = json.dumps(changed).encode() + b"\n"
        for name in ("report.json", "ring.rank0"):
            (folder / name).unlink(missing_ok=True)
        log.write_bytes(b"".join(lines))

    return make


# ---- the black box ----

_WORDS = (b"\xff" * 8, bytes(8), struct.pack("<d", float("nan")), struct.pack("<d", float("inf")),
          struct.pack("<d", 1e308), struct.pack("<q", -(2**63)), struct.pack("<Q", 2**62))  # fmt: skip


def ring_with(at: int, word: int, stride: int = 0) -> Make:
    """Eight bytes of the ring are others, in every record where there is a stride; nothing else is left."""

    def make(folder: Path) -> None:
        ring = folder / "ring.rank0"
        data = bytearray(ring.read_bytes())
        places = range(at, layout.NOTES_AT, stride) if stride else (at,)
        for place in places:
            data[place : place + 8] = _WORDS[word]
        _only(folder, "ring.rank0", bytes(data[: layout.FILE_BYTES]))

    return make


def ring_header_with(path: tuple[str | int, ...], value: Any) -> Make:
    """A header with a right checksum and a wrong value; a note likewise."""

    def make(folder: Path) -> None:
        data = bytearray((folder / "ring.rank0").read_bytes())
        _, length, _ = layout.HEAD.unpack_from(data)
        header = json.loads(data[layout.HEAD.size : layout.HEAD.size + length])
        text = json.dumps(with_value(header, path, value) if path else value).encode()[:16_000]
        data[: layout.HEAD.size + len(text)] = layout.HEAD.pack(layout.MAGIC, len(text), zlib.crc32(text)) + text
        note = json.dumps({"kind": value, "step": value, "text": value}).encode()[: layout.NOTE_BYTES]
        entry = layout.NOTE.pack(1, len(note), zlib.crc32(note)) + note
        data[layout.NOTES_AT : layout.NOTES_AT + len(entry)] = entry
        _only(folder, "ring.rank0", bytes(data))

    return make


def _only(folder: Path, name: str, data: bytes) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / name).write_bytes(data)


# ---- the folder ----


def _many_files(folder: Path) -> None:
    for number in range(100_000):
        os.close(os.open(folder / f"memory.rank{number}.jsonl", os.O_CREAT | os.O_WRONLY))


def _many_ranks(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_bytes())
    (folder / "report.json").unlink()
    for rank in range(300):
        report["run"].update(rank=rank, world_size=10**5)
        (folder / f"report.rank{rank}.json").write_text(json.dumps(report))


def _deep(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    with contextlib.chdir(folder):
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")


def _loops(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.unlink()
    for number in range(50):
        (folder / f"link{number}").symlink_to(folder)


def _names(folder: Path) -> None:
    inner = folder / "\x1b]0;mine\x07\n\u202e"
    inner.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file():
            path.rename(inner / path.name)
    os.rename(inner, os.fsencode(folder) + b"/\xff\x1b[31m")


def mutated_events(seed: int) -> Make:
    def make(folder: Path) -> None:
        chance = random.Random(seed)
        data = bytearray((folder / FILES[4]).read_bytes())
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        _only(folder, FILES[4], bytes(data))

    return make


FOLDERS: dict[str, Make] = {
    "100,000 logs": _many_files, "300 ranks": _many_ranks, "1,100 folders deep": _deep, "loops": _loops,
    "names": _names,
}  # fmt: skip


# ---- the small process ----


def serve() -> None:
    import numpy  # noqa: F401  # of the curves

    from forgather_mem.cli import app
    from forgather_mem.page import data, html  # noqa: F401
    from forgather_mem.reporting import run_dir  # noqa: F401

    # What only the first command imports is not imported in each fork
    with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stderr(io.StringIO()):
        app.dispatch(["report", empty])
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked["argv"], asked["to"])
        descriptor = os.pidfd_open(child)
        if not select.select([descriptor], [], [], _MAX_WAIT_S)[0]:
            os.kill(child, signal.SIGKILL)
        os.close(descriptor)
        _, status, usage = os.wait4(child, 0)
        used = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "used": used}), flush=True)


def _become(argv: list[str], to: str) -> None:
    code = 99
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
        file = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        from forgather_mem.cli.app import dispatch

        code = dispatch(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
