"""Does all of it hold on this accelerator? What a GPU run has to prove, in one command and under 8 minutes.

    make device
    python benchmarks/device.py [--only PART ...] [--dry] [--markdown FILE]

Each part runs in a process of its own, so that one that crashes or runs out of memory ends no other. The table at the
end has a verdict in each row; the command ends with 1 if one is "WRONG". Nothing is installed or fetched.
`--only oom` runs all parts whose names begin so. Without an accelerator it lists what it would do. `--dry` runs on the
host the parts whose logic can be tried there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Some 70 s of them are for starting processes. What has not begun by then is left out, and said.
MOST_S = 8 * 60
EXPANDABLE, ASYNC = "expandable_segments:True", "backend:cudaMallocAsync"
_ROW = "row of device.py: "


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process.

    Attributes:
        name: For `--only`.
        says: What it shows, in one line.
        run: Module and function, which takes the device's kind and yields rows.
        allocator: The setting of torch's allocator.
        limit_s: After this it is killed.
        dry: Whether it can be tried on the host.
    """

    name: str
    says: str
    run: str
    allocator: str = ""
    limit_s: int = 60
    dry: bool = False


PARTS = (
    Part(name="tests", says="the tests marked gpu", run="device:tests", limit_s=150, dry=True),
    Part(name="known-native", says="known tensors against statistics and headroom, native", run="_device_memory:known"),
    Part(
        name="known-expandable",
        says="the same with expandable segments",
        run="_device_memory:known",
        allocator=EXPANDABLE,
    ),
    Part(name="known-async", says="the same with cudaMallocAsync", run="_device_memory:known", allocator=ASYNC),
    Part(
        name="devices",
        says="a second device: found when used, never woken; nn.DataParallel",
        run="_device_memory:several",
        dry=True,
    ),
    Part(name="leak", says="a leak until it dies: the forecast against truth", run="_device_memory:leak", dry=True),
    Part(name="clear", says="the time of empty_cache with and without queued kernels", run="_device_times:clear"),
    Part(
        name="policies",
        says="throughput with a clear after each step: never, always, adaptive",
        run="_device_times:policies",
        limit_s=120,
        dry=True,
    ),
    Part(
        name="oom-allocator",
        says="torch's own out-of-memory error is recognised",
        run="_device_memory:oom_allocator",
        dry=True,
    ),
    Part(
        name="oom-graphs",
        says="private pools of CUDA graphs: headroom, and their size in the message",
        run="_device_memory:oom_graphs",
    ),
    Part(name="oom-pinned", says="pinned host memory that can't be had", run="_device_memory:oom_pinned"),
    Part(name="oom-cublas", says="cuBLAS on a full card", run="_device_memory:oom_cublas"),
    Part(name="oom-cudnn", says="cuDNN on a full card", run="_device_memory:oom_cudnn"),
    Part(
        name="advice",
        says="the first advice after an out-of-memory error, applied as it stands",
        run="_device_memory:advice",
        limit_s=120,
        dry=True,
    ),
    Part(
        name="cost",
        says="what watching costs in steps of 17 ms",
        run="_device_times:cost",
        limit_s=120,
        dry=True,
    ),
    Part(name="graphs", says="a step that is one CUDA graph: cost, and the same weights", run="_device_times:graphs"),
    Part(name="pinned", says="pinned memory: what torch keeps of it is trimmed", run="_device_memory:pinned"),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of the table: what a part has found, or how it ended without."""

    part: str
    what: str
    figures: str
    ok: bool | None

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "WRONG", None: "-"}[self.ok]


# ---- in a process of its own ----


def tests(device: str) -> Iterator[tuple[str, str, bool | None]]:
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *map(str, files)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    if failed or done.returncode:
        print(done.stdout[-8000:], done.stderr[-2000:], file=sys.stderr)
    passed = " passed" in last
    yield f"pytest -m gpu, {len(files)} files", "; ".join([last, *failed]), done.returncode == 0 if passed else None
    if done.returncode and not passed:
        yield "pytest", f"it ended with {done.returncode}", False


def child(name: str, device: str) -> None:
    """Run one part, and print each of its rows as soon as it is there."""
    module, _, function = next(part.run for part in PARTS if part.name == name).partition(":")
    for row in getattr(importlib.import_module(module), function)(device):
        print(_ROW + json.dumps(row), flush=True)


# ---- all of them ----


def lines_of(part: Part, device: str, limit_s: float) -> list[Line]:
    """The rows of a part; of one that did not end well, how it ended, too."""
    words = [sys.executable, str(Path(__file__)), "--child", part.name, "--device", device]
    began_s, ending = time.perf_counter(), ""
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment(part), stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            printed, errors = process.communicate(timeout=min(part.limit_s, limit_s))
            if process.returncode:
                ending = f"it ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            printed, errors = process.communicate()
            ending = "it took too long"
    print(f"{part.name:<18}{time.perf_counter() - began_s:6.1f} s", flush=True)
    rows = [json.loads(line.removeprefix(_ROW)) for line in printed.decode().splitlines() if line.startswith(_ROW)]
    lines = [Line(part=part.name, what=what, figures=figures, ok=ok) for what, figures, ok in rows]
    if ending or not lines:
        text = errors.decode(errors="replace").strip()
        last = (text.splitlines() or [""])[-1][:300]
        lines.append(Line(part=part.name, what="its end", figures=f"{ending or 'no row'}: {last}", ok=False))
    if any(line.ok is False for line in lines):
        print(errors.decode(errors="replace")[-6000:], file=sys.stderr)
    return lines


def environment(part: Part) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(paths)}
    found |= {"PYTORCH_CUDA_ALLOC_CONF": part.allocator} if part.allocator else {}
    return found


def chosen(only: Sequence[str], dry: bool) -> list[Part]:
    """The parts whose names begin with one of these.

    Raises:
        SystemExit: for a name that none has.
    """
    for name in only:
        if not any(part.name.startswith(name) for part in PARTS):
            sys.exit(f"--only {name}: the parts are {', '.join(part.name for part in PARTS)}")
    return [part for part in PARTS if (not only or part.name.startswith(tuple(only))) and (part.dry or not dry)]


def accelerator() -> str:
    """The name of this machine's, with the versions; empty without one that torch can use."""
    try:
        import torch
    except ImportError:
        return ""
    if not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"


def table(lines: Sequence[Line]) -> list[str]:
    rows = [f"| {one.part} | {one.what} | {one.figures} | {one.verdict} |" for one in _clean(lines)]
    return ["| part | what | figures | verdict |", "|---|---|---|---|", *rows]


def _clean(lines: Sequence[Line]) -> Iterator[Line]:
    """Without what would end a cell, and without this machine's folders."""
    for one in lines:
        figures = " ".join(one.figures.replace("|", "/").split()).replace(str(ROOT), "")
        yield Line(part=one.part, what=one.what, figures=figures, ok=one.ok)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="parts, or how their names begin")
    parser.add_argument("--dry", action="store_true", help="on the host, the parts that can be tried there")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.device)
        return 0
    parts = chosen(options.only, options.dry)
    name = "the host (--dry)" if options.dry else accelerator()
    if not name:
        print("There is no accelerator that torch can use here. With one, this would run:\n")
        print("\n".join(f"  {part.name:<18}{part.says}" for part in parts))
        return 0
    return _run_all(parts, name, options)


def _run_all(parts: Sequence[Part], name: str, options: argparse.Namespace) -> int:
    began_s, lines = time.perf_counter(), []
    for part in parts:
        left_s = MOST_S - (time.perf_counter() - began_s)
        if left_s > 10:
            lines += lines_of(part, "cpu" if options.dry else "cuda", left_s)
        else:
            lines.append(Line(part=part.name, what=part.says, figures=f"left out: {MOST_S} s are over", ok=False))
    wrong = sum(line.ok is False for line in lines)
    head = f"{time.strftime('%Y-%m-%d')}, {name}, Python {platform.python_version()}. Made by `make device`"
    end = f"{len(lines)} rows, {wrong} wrong, {time.perf_counter() - began_s:.0f} s."
    text = "\n".join([f"{head} in {time.perf_counter() - began_s:.0f} s.", "", *table(lines), "", end])
    print("\n" + text)
    if options.markdown:
        options.markdown.write_text(f"# On a device\n\n{text}\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
