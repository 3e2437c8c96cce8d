"""Renders a stranger's template in a process of its own, under limits of the operating system.

Whatever an expression of Jinja takes, the process ends at its limit and this one goes on: no rule for a single filter
or method is needed. The process is started for one request and has ended when the answer is there; nothing of it is
left behind. The answer is JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import pickle
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.source_map import Origin, SourceMap, Tracer
from forgather_mem.config.source.loader import Source
from forgather_mem.config.source.rendered import Rendered, SourceLocation
from forgather_mem.errors import TemplateError, rebuilt

_START = (
    "import gc, sys; gc.disable(); sys.path += sys.argv[1:]; "
    "from forgather_mem.config.rendering.child import respond; respond()"
)
_PACKAGES = ("forgather_mem", "jinja2", "markupsafe", "yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a process is asked for.

    Attributes:
        what: Of "trace" the source map.
        name: The template's name, or "<string>".
        text: The template itself, if it has no file.
        folders: The search path.
        budgets: The limits.
        global_vars, variables: Plain data.
        secret: Of the tokens for values from outside: a request that is made again gets the same text.
        moment: What time it is.
    """

    what: Literal["render", "trace"] = "render"
    name: str
    text: str | None = None
    folders: tuple[str, ...]
    budgets: Limits
    global_vars: Mapping[str, object]
    variables: Mapping[str, object]
    secret: str
    moment: datetime.datetime


_Answer = dict[str, Any]  # what `child.answer` says, "error", or "refused" and why


def render(request: Request) -> Rendered:
    """The rendered template.

    Raises:
        TemplateError: if anything is wrong with it, or a limit stopped it.
    """
    said = _answer(request)
    return Rendered(**said | {
        "locate": Tracer(lambda: _trace(request, said["text"]), SourceLocation(*said["locate"])),
        "unknown_blocks": tuple(map(rebuilt, said["unknown_blocks"])),
        "mentioned": frozenset(said["mentioned"]),
        "references": [tuple(reference) for reference in said["references"]],
    })  # fmt: skip


def _trace(request: Request, text: str) -> SourceMap | None:
    """The source map of a text that was rendered; None if there is none, or the files have changed since."""
    try:
        said = _answer(replace(request, what="trace"))
    except TemplateError:
        return None
    if said["text"] != text or said["map"] is None:
        return None
    starts, pieces, told = said["map"]
    origins = [Origin(Source(name, name, name, None, line, lines), *how) for name, line, lines, *how in told]
    return SourceMap(text, starts, pieces, origins)


def _answer(request: Request) -> _Answer:
    """The answer of a new process."""
    import subprocess  # the process that renders imports this module, and needs none

    executable = sys.executable or ""
    if getattr(sys, "frozen", False) or not re.search("python|pypy", os.path.basename(executable).lower()):
        raise _not_started(request, f"{executable!r} is no Python")  # a program that has one in it would run again
    most = 16 * request.budgets.rendered_bytes  # its values and its source map, too
    options = ["-I", "-S", *["-B"] * sys.dont_write_bytecode, *["-Xutf8"] * sys.flags.utf8_mode]
    try:
        process = subprocess.Popen(
            [executable, *options, "-c", _START, *_folders()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise _not_started(request, str(error)) from error
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # it has ended: it says why, or how
                stdin.write(pickle.dumps(request))
            said = process.stdout.read(most)
        except BaseException:
            process.kill()
            raise
        if len(said) == most:
            process.kill()
    try:
        answer: _Answer = dict(json.loads(said.decode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        raise _ended(request, process.returncode) from None
    if "refused" in answer:
        raise _not_started(request, answer["refused"])
    if "error" in answer:
        raise rebuilt(answer["error"])
    return answer


def _folders() -> list[str]:
    """Where the process finds what it imports, behind Python's own: no folder of a stranger's is among them unless it
    has these packages for this process, too."""
    found = [sys.modules.get(name) or importlib.util.find_spec(name) for name in _PACKAGES]
    files = [getattr(one, "__file__", None) or getattr(one, "origin", None) for one in found]
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(os.path.abspath(file))) for file in files if file))


def _ended(request: Request, status: int) -> TemplateError:
    budgets = request.budgets
    if -status == signal.SIGPROF:
        message = f"rendering this template takes more than {budgets.render_cpu_s:.2g} s of CPU time in one operation"
    else:
        message = f"the process that renders this template has ended without an answer (exit status {status})"
    return TemplateError(message, template=request.name, hint=_HINT)


def _not_started(request: Request, why: str) -> TemplateError:
    message = f"a stranger's template is rendered in a process of its own, and there can be none here: {why}"
    return TemplateError(message, template=request.name, hint=_HINT)


_HINT = "if you wrote or trust it: allow_files=[its folder] or --allow-file FOLDER renders it in this process"
