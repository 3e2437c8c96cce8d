"""How each tool is started beside a training, as its documentation says, and where it leaves what it found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
INSIDE = [sys.executable, str(HERE / "inside.py")]
# A command of the folder that a run leaves, for the script that was run: it prints what the tool found
Read = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: As tables show it.
        package: The distribution, for its version.
        start: The command without the script.
        read: See `Read`; None for a tool that writes `findings.txt` itself.
        plain_start: The command for a loop that is not transformers' or Lightning's, where it differs.
        environment: What is set for it.
    """

    name: str
    package: str
    start: list[str]
    read: Read | None = None
    plain_start: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, script: Path) -> list[str]:
        """The whole command line for this script."""
        has_trainer = any(name in script.read_text() for name in ("import Trainer", "Trainer,", "lightning"))
        return [*(self.start if has_trainer or not self.plain_start else self.plain_start), str(script)]


def _inside(monitor: str) -> list[str]:
    return [*INSIDE, monitor]


ALONE = Tool("alone", "torch", [sys.executable])
OURS = Tool(
    "forgather-mem", "forgather_mem", [str(BIN / "forgather-mem"), "run"],
    read=lambda script: [str(BIN / "forgather-mem"), "report", "mem"],
    environment={"FORGATHER_MEM_DIR": "mem"},
)  # fmt: skip
READ_MEMRAY = lambda script: [*INSIDE, "--read-memray", str(script)]  # noqa: E731
# As its pages on leaks ask: with Python's own allocator, from where the imports are done
MEMRAY = Tool("memray", "memray", _inside("memray"), read=READ_MEMRAY)
MEMRAY_RUN = Tool(
    "memray run", "memray", [str(BIN / "memray"), "run", "--quiet", "--aggregate", "-o", "memray.bin"], read=READ_MEMRAY
)
FIL = Tool(
    "Fil", "filprofiler", [str(BIN / "fil-profile"), "--no-browser", "-o", "fil", "run"],
    read=lambda script: [*INSIDE, "--read-fil", str(script)],
)  # fmt: skip
OBJGRAPH = Tool("objgraph", "objgraph", _inside("objgraph"))
TRACEML = Tool(
    "TraceML", "traceml-ai", [str(BIN / "traceml"), "run", "--run-name", "peers"],
    read=lambda script: ["cat", "logs/peers/final_summary.txt"],
    # A plain loop needs two lines of its own, which `inside.py` adds; the script is an argument of it
    plain_start=[str(BIN / "traceml"), "run", "--run-name", "peers", INSIDE[1], "--args", "traceml"],
)  # fmt: skip
WANDB = Tool("W&B system metrics", "wandb", _inside("wandb"), environment={"WANDB_MODE": "offline"})
LIGHTNING = Tool("Lightning DeviceStatsMonitor", "lightning", _inside("lightning"))

LEAK_TOOLS = (OURS, MEMRAY, FIL, OBJGRAPH, TRACEML, WANDB, LIGHTNING)
OOM_TOOLS = (ALONE, OURS, MEMRAY_RUN, FIL, OBJGRAPH, TRACEML, WANDB, LIGHTNING)
COST_TOOLS = (ALONE, OURS, MEMRAY_RUN, FIL, OBJGRAPH, TRACEML, WANDB, LIGHTNING)
