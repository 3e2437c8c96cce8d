"""What counts as found: regular expressions over what a tool says, the same for all of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FACTS = json.loads((ROOT / "tests" / "leaks" / "by_others" / "facts.json").read_text())

# Which words say that something leaks: ours, TraceML's, and objgraph's growth in each of the last looks. The others
# have no such sentence: they list what is allocated, or draw a curve, whether it leaks or not.
SAYS = re.compile(r"^LEAK\b|memory creep|^grew at each of the last", re.IGNORECASE | re.MULTILINE)
WITH_A_VERDICT = ("forgather-mem", "TraceML", "objgraph")
# In our report the holders and lines of the suspects; the output of the others is searched as a whole
OUR_SUSPECTS = re.compile(r"^ +(?:held by|made at|added at) +(.*)", re.MULTILINE)
# Also those that a launcher writes again, indented
TRACEBACK = re.compile(
    r"^(?P<by>[ \t]*)(?:traceback : )?Traceback \(most recent call last\):\n(?:(?P=by)[ \t]+.*\n|\n)*(?P=by)\S.*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Task:
    """A script of tests/leaks/by_others, and its leak as its author tells it; `lines` make what is kept, besides."""

    script: str
    kind: str
    lines: tuple[int, ...] = ()
    not_enough: str = ""  # of the author's words, those that other texts contain

    @property
    def path(self) -> Path:
        folder = "innocent" if self.kind == "innocent" else "leaking"
        return ROOT / "tests" / "leaks" / "by_others" / folder / f"{self.script}.py"


TASKS = (
    Task("flight_log", "Python objects, records of a log", (49, 58)),
    Task("accelerate_native_buffers", "memory of C", (45,), r"\|native"),
    Task("accelerate_memmap_tokens", "innocent"),
    Task("bank", "innocent"),
)


def says_leak(findings: str) -> bool:
    """Whether it says that something leaks."""
    return SAYS.search(findings) is not None


def names_it(task: Task, findings: str) -> bool:
    """Whether it names the true holder, or a line that makes what is kept, or one beside it."""
    facts = FACTS[task.script]
    if "== forgather-mem ==" in findings:
        findings = "\n".join(OUR_SUSPECTS.findall(findings))
    holder = re.sub(task.not_enough, "", facts["held"]) if task.not_enough else facts["held"]
    if re.search(holder, findings.replace(task.script, "")):  # the name of the script is no finding
        return True
    found = {int(line) for line in re.findall(rf"\b{task.script}\.py:(\d+)", findings)}
    near = {line + by for line in facts["lines"] for by in (-1, 0, 1)}
    return bool(found & {*near, *task.lines})


@dataclass(frozen=True)
class AfterAnOom:
    """What a user has after benchmarks/peers/adam_state.py has run out of memory in its optimizer's first step."""

    ends_alike: bool  # the same error as alone, and the same exit code
    phase: bool  # says that it was in the optimizer
    memory: bool  # names what the memory was: its line, or the states of the optimizer
    cure: bool  # names a change with which it finishes, one of those its author has tried


def after_oom(alone: tuple[int | None, str], watched: tuple[int | None, str], findings: str) -> AfterAnOom:
    """Judge (exit code, output) and the findings; the traceback, which Python writes alone too, counts for nothing."""
    text = TRACEBACK.sub("", watched[1]) + findings
    return AfterAnOom(
        # A launcher may add a traceback of its own
        ends_alike=watched[0] == alone[0] and errors_of(alone[1])[-1] in errors_of(watched[1]),
        phase=bool(re.search(r"\bin the optimizer\b|\boptimizer(?:'s)? step\b", text)),
        memory=bool(re.search(r"\bexp_avg|optimizer state|\badam_state\.py:\d+", text)),
        cure=bool(re.search(r"\bsgd\b|\badafactor\b|\bbf16\b|\bbfloat16\b", text, re.IGNORECASE)),
    )


def errors_of(output: str) -> list[str]:
    """The class of each error, from the last lines of tracebacks."""
    return [match[0].rsplit("\n", 1)[-1].partition(":")[0].strip() for match in TRACEBACK.finditer(output)]
