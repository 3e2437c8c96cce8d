"""The process in which a stranger's template is rendered.

It is started by `stranger.py` with one request on its standard input, sets its own limits, renders, and answers with
plain data as JSON: what has seen a stranger's text is never unpickled.
"""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import resource
import signal
import sys
import time
from dataclasses import astuple, dataclass
from types import FrameType

from forgather_mem.config.clock import CpuClock
from forgather_mem.config.limits import Limits
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.rendering.source_map import SourceMap, Tracer
from forgather_mem.config.rendering.stranger import Request
from forgather_mem.config.rendering.taint import TaintTokens
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError
from forgather_mem.units import MIB


@dataclass(frozen=True, slots=True)
class _Times:
    """When Python looks at the clock; after how long the kernel ends one operation that Python can't; and how many
    times the limit a MiB of text may take more: so much, of 10,000 expressions. Reading its YAML, which takes longer,
    is not done here."""

    look_every_s: float = 0.05
    one_operation_s: float = 0.1
    per_mib: float = 0.5


_TIMES = _Times()


def respond() -> None:
    """Answer one request, and end at once."""
    gc.enable()  # it was off while this was imported
    request: Request = pickle.load(sys.stdin.buffer)
    said = limited(request)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    _limit_memory(128 * MIB)  # to say in what has happened, and to write the answer
    sys.stdout.buffer.write(json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()
    os._exit(0)


def limited(request: Request) -> dict[str, object]:
    """The answer to a request, an error of it included, under limits that this process keeps."""
    try:
        cpu = LimitedClock(request.budgets)
        _limit_memory(request.budgets.render_bytes)
    except (OSError, ValueError) as error:
        return {"refused": f"its limits can't be set ({error})"}
    try:
        with cpu:
            return answer(request, cpu)
    except TemplateError as error:
        return {"error": error.__dict__}
    except (MemoryError, RecursionError) as error:
        kind = "memory" if isinstance(error, MemoryError) else "depth"
        return {"error": {"message": f"rendering this template takes too much {kind}", "template": request.name}}


def answer(request: Request, cpu: CpuClock) -> dict[str, object]:
    """The answer to a request, as plain data.

    Raises:
        TemplateError: if anything is wrong with the template.
    """
    searcher = Searcher(request.folders, request.budgets)
    marks = TaintTokens(request.secret)
    renderer = Renderer(searcher, request.budgets, request.global_vars, marks=marks, read=cpu.read)
    if request.what == "references":
        found, failure = renderer.references(request.name, request.variables)
        return {"references": found, "failure": failure and failure.__dict__}
    if request.text is None:
        rendered = renderer.render(request.name, request.variables, request.moment)
    else:
        rendered = renderer.render_string(request.text, request.variables, request.moment)
    assert isinstance(rendered.locate, Tracer)
    if request.what == "trace":
        return {"text": rendered.text, "map": rendered.locate.map and _plain(rendered.locate.map)}
    return {
        "name": rendered.name,
        "text": rendered.text,
        "values": rendered.values,
        "unknown_blocks": [error.__dict__ for error in rendered.unknown_blocks],
        "start": astuple(rendered.locate.start),
        "parent": rendered.parent,
        "mentioned": list(rendered.mentioned),
        "num_chars": rendered.num_chars,
        "spent_s": cpu.taken_s(),
    }


def _plain(found: SourceMap) -> object:
    origins = [
        (origin.source.file_name, origin.source.first_line, origin.source.lines, origin.block_names, origin.chain)
        for origin in found.origins
    ]
    return found.starts, found.pieces, origins


class LimitedClock(CpuClock):
    """The clock of this process: it looks at itself, and the kernel ends the process soon after."""

    __slots__ = ("_began_s",)

    def __init__(self, budgets: Limits) -> None:
        super().__init__(budgets.render_cpu_s, per_mib=_TIMES.per_mib)
        self._began_s = time.process_time()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self._limit()
        ends = {signal.SIGXCPU, signal.SIGVTALRM}
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPROF, self._tick)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ends, signal.SIGPROF})  # a parent may have blocked them
        signal.setitimer(signal.ITIMER_PROF, _TIMES.look_every_s, _TIMES.look_every_s)

    def read(self, num_chars: int) -> None:
        super().read(num_chars)
        self._limit()

    def is_over(self) -> bool:
        """By either clock: the timer that ends the process counts whole ticks of the scheduler, and is ahead on a busy
        machine."""
        return super().is_over() or signal.getitimer(signal.ITIMER_VIRTUAL)[0] < _TIMES.one_operation_s

    def _limit(self) -> None:
        """The timer counts what Python takes, to the ms; the limit what the kernel does for it, too, in seconds."""
        end_s = self._began_s + self.limit_s + _TIMES.one_operation_s
        signal.setitimer(signal.ITIMER_VIRTUAL, max(end_s - time.process_time(), 0.001))
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        limit = math.ceil(end_s)
        resource.setrlimit(resource.RLIMIT_CPU, (limit if most < 0 else min(limit, most), most))

    def _tick(self, signum: int, frame: FrameType | None) -> None:
        if self.is_over():
            for timer in (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL):
                signal.setitimer(timer, 0)  # the error is being said
        self.look()


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
