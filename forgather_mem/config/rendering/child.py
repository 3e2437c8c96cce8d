"""The process in which a stranger's template is rendered.

It is started by `stranger.py` with one request on its standard input, sets its own limits, renders, and answers with
plain data as JSON: what has seen a stranger's text is never unpickled.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import signal
import sys
from dataclasses import astuple, fields
from types import FrameType

from forgather_mem.config.rendering.compiler import LimitPassed
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.rendering.source_map import SourceMap, Tracer
from forgather_mem.config.rendering.stranger import Request
from forgather_mem.config.rendering.taint import TaintTokens
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError
from forgather_mem.units import MIB

_TIMERS = {signal.ITIMER_VIRTUAL: signal.SIGVTALRM, signal.ITIMER_PROF: signal.SIGPROF}


def respond() -> None:
    """Answer one request, and end at once."""
    gc.enable()  # it was off while this was imported
    request: Request = pickle.load(sys.stdin.buffer)
    said = limited(request)
    _limit_memory(128 * MIB)  # to say in what has happened, and to write the answer
    sys.stdout.buffer.write(json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()
    os._exit(0)


def limited(request: Request) -> dict[str, object]:
    """The answer to a request, an error of it included, under limits that this process keeps."""
    try:
        try:
            cpu = _ProcessClock(request.budgets.render_cpu_s)
            _limit_memory(request.budgets.render_bytes)
        except (OSError, ValueError) as error:
            return {"refused": f"its limits can't be set ({error})"}
        try:
            return answer(request, cpu)
        finally:  # in the outer one, since the time may be up at this moment
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
    except TemplateError as error:
        return {"error": error.__dict__}
    except LimitPassed as error:  # before its first line, or behind its last
        return {"error": {"message": str(error), "template": request.name}}
    except (MemoryError, RecursionError) as error:
        kind = "memory" if isinstance(error, MemoryError) else "depth"
        return {"error": {"message": f"rendering this template takes too much {kind}", "template": request.name}}


def answer(request: Request, cpu: _ProcessClock) -> dict[str, object]:
    """The answer to a request, as plain data.

    Raises:
        TemplateError: if anything is wrong with the template.
    """
    search = Searcher(request.folders, request.budgets)
    marks = TaintTokens(request.secret)
    renderer = Renderer(search, request.budgets, request.global_vars, marks=marks, moment=request.moment, read=cpu.read)
    if request.text is None:
        rendered = renderer.render(request.name, request.variables)
    else:
        rendered = renderer.render_string(request.text, request.variables)
    assert isinstance(rendered.locate, Tracer)
    if request.what == "trace":
        return {"text": rendered.text, "map": rendered.locate.map and _plain(rendered.locate.map)}
    return {
        **{one.name: getattr(rendered, one.name) for one in fields(Rendered)},
        "unknown_blocks": [error.__dict__ for error in rendered.unknown_blocks],
        "locate": astuple(rendered.locate.start),
        "mentioned": list(rendered.mentioned),
    }


def _plain(found: SourceMap) -> object:
    origins = [
        (origin.source.file_name, origin.source.first_line, origin.source.lines, origin.block_names, origin.chain)
        for origin in found.origins
    ]
    return found.starts, found.pieces, origins


class _ProcessClock:
    """The CPU time of this process. When it is up, Python ends the render where it is; soon after the kernel ends the
    process, and with it one operation that Python can't end."""

    _one_operation_s = 0.1
    _more_per_char = 0.5 / MIB  # of 10,000 expressions; reading their YAML, which takes longer, is not done here

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGVTALRM, self._end)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TIMERS.values())  # a parent may have blocked them
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        signal.setitimer(signal.ITIMER_PROF, limit_s + self._one_operation_s)

    def read(self, num_chars: int) -> None:
        """So much text of templates was read: it may take longer."""
        more_s = num_chars * self._more_per_char * self.limit_s
        for timer in _TIMERS:
            signal.setitimer(timer, signal.getitimer(timer)[0] + more_s)

    def _end(self, signum: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 1.0)  # to say the error in
        raise LimitPassed(f"this template takes more than {self.limit_s:.2g} s of CPU time")


def _limit_memory(num_bytes: int) -> None:
    """Let this process take so much more than it has. Where the kernel doesn't say what that is (macOS), there is no
    limit."""
    try:
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + num_bytes
    except FileNotFoundError:
        return
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if most < 0 else min(limit, most), most))
