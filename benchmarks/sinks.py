"""What does writing 20 numbers a step to TensorBoard cost, and reading a million back, beside the peers and the floor?

    python benchmarks/sinks.py [--markdown FILE] [--check] [--records N]

One process; the variants take turns, figures are medians, ratios are of medians. "On the step" is the wall time
of the call on the training thread. "CPU" is what the whole process spends for it: the call, and the mean of the
writer's own thread by the kernel's account. The peers are torch's `SummaryWriter` (20 calls of `add_scalar`; one
20-value `Event` through its `file_writer`) and `EventAccumulator`. The floor is one `write` of as many bytes as a
record takes: what nobody who keeps each record in a file can leave out. In the paced run 4 ms pass between two
records, so that caches are cold as in a training; nothing else is done. `--check` ends with 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from _training import train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback

from forgather_mem.formats.event_file import read_scalars
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.units import GIB

PACKAGES = ("torch", "tensorboard", "protobuf", "google-crc32c")
NUM_VALUES = 20
ROUNDS, RECORDS_PER_ROUND = 15, 200
REAL_STEPS = 300
PACED_RECORDS, PACE_S = 400, 0.004
FLOOR_BYTES = 643  # of a record in our event file
# Ratios to 20 x add_scalar, or to EventAccumulator; rates and times as they are.
PROMISED = {
    "step": 1 / 20,
    "paced run: step": 0.08,
    "cpu": 1 / 15,
    "bytes": 0.55,
    "scalars_per_s": 500_000,
    "read_s": 3.0,
    "read": 1 / 4,
}
NAMES = [f"bench/value_{i}_bytes" for i in range(NUM_VALUES)]
TAGS = [f"mem_bench/value_{i}_gib" for i in range(NUM_VALUES)]

RUN: Any = SimpleNamespace(rank=0, output_dir=None, header=RunHeader(), so_far=dict)


@dataclass
class Variant:
    """One way of writing a step's numbers; keeps what each call took."""

    name: str
    write: Callable[[Any], object]
    thread_id: int | None
    close: Callable[[], None]
    step: int = 0
    wall_s: list[float] = field(default_factory=list)
    _call_cpu_s: list[float] = field(default_factory=list)

    def run(self, num_records: int) -> None:
        """Write records and book the time of each on the calling thread."""
        for _ in range(num_records):
            self.step += 1
            sample = sample_of(self.step)  # made by the engine, not by a sink
            began_cpu_s, began_s = time.thread_time(), time.perf_counter()
            self.write(sample)
            self.wall_s.append(time.perf_counter() - began_s)
            self._call_cpu_s.append(time.thread_time() - began_cpu_s)

    def step_us(self) -> float:
        """Wall time of a call on the training thread, median."""
        return statistics.median(self.wall_s) * 1e6

    def cpu_us(self) -> float:
        """CPU of a record in the whole process: the median call, and the writer's thread as the kernel counts it."""
        thread_s = 0.0
        if self.thread_id is not None:
            thread_s = int(Path(f"/proc/self/task/{self.thread_id}/schedstat").read_text().split()[0]) / 1e9
        return (statistics.median(self._call_cpu_s) + thread_s / self.step) * 1e6


def sample_of(step: int) -> Sample:
    values = {name: (step + i) * 1e9 for i, name in enumerate(NAMES)}
    return Sample(event="step_end", step=step, epoch=0.5, time_s=time.time(), values=values)


def writer_thread(writer: SummaryWriter) -> int:
    return int(writer.file_writer.event_writer._async_writer._worker.native_id)


def variants(folder: Path) -> list[Variant]:
    """The peers first: ratios are to the first."""
    scalars, events = SummaryWriter(str(folder / "add_scalar")), SummaryWriter(str(folder / "event"))

    def twenty_calls(sample: Sample) -> None:
        for tag, value in zip(TAGS, sample.values.values(), strict=True):
            scalars.add_scalar(tag, value / GIB, sample.step)

    def one_event(sample: Sample) -> None:
        event = Event()
        for tag, value in zip(TAGS, sample.values.values(), strict=True):
            event.summary.value.add(tag=tag, simple_value=value / GIB)
        events.file_writer.add_event(event, sample.step)

    raw, payload = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT), bytes(FLOOR_BYTES)
    tensorboard, jsonl = TensorBoardSink(logging_dir=folder / "ours"), JsonlSink(folder / "ours.jsonl")
    tensorboard.begin(RUN)
    jsonl.begin(RUN)

    return [
        Variant("20 x add_scalar", twenty_calls, writer_thread(scalars), scalars.close),
        Variant("one Event of 20 values, file_writer", one_event, writer_thread(events), events.close),
        Variant("TensorBoardSink", tensorboard.write, None, lambda: tensorboard.end(RUN)),
        Variant("JsonlSink", jsonl.write, None, lambda: jsonl.end(RUN)),
        Variant("floor: one write of the bytes", lambda sample: os.write(raw, payload), None, lambda: os.close(raw)),
    ]


class TakesTurns(TrainerCallback):
    """In a real training the variants take turns, one at each step."""

    def __init__(self, variants: list[Variant]) -> None:
        self.variants = variants
        self.step_s: list[float] = []
        self._ended_s: float | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ended_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._ended_s is not None
        self.step_s.append(time.perf_counter() - self._ended_s)
        self.variants[state.global_step % len(self.variants)].run(1)


def real_steps(chosen: list[Variant], folder: Path, num_steps: int) -> float:
    """Train so many steps with the variants taking turns; the median step without their writing, seconds."""
    turns = TakesTurns(chosen)
    train(turns, num_steps, folder, 8)
    return statistics.median(turns.step_s)


def bytes_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def writing(num_real_steps: int) -> tuple[list[str], dict[str, float]]:
    lines, figures = [], {}
    for setting in ("tight loop", "paced run", "real step"):
        folder = Path(tempfile.mkdtemp())
        chosen = variants(folder)
        step_s = 0.0
        if setting == "tight loop":
            for _ in range(ROUNDS):
                for variant in chosen:
                    variant.run(RECORDS_PER_ROUND)
        elif setting == "paced run":
            for _ in range(PACED_RECORDS):
                for variant in chosen:
                    time.sleep(PACE_S)
                    variant.run(1)
        else:
            step_s = real_steps(chosen, folder / "out", num_real_steps * len(chosen))
        costs = [(variant.step_us(), variant.cpu_us()) for variant in chosen]
        for variant in chosen:
            variant.close()
        files = [folder / name for name in ("add_scalar", "event", "ours", "ours.jsonl", "raw")]
        sizes = [bytes_of(path) / variant.step for path, variant in zip(files, chosen, strict=True)]
        lines += [f"## Writing 20 numbers, {setting}" + (f" of {step_s * 1e3:.0f} ms" if step_s else ""), ""]
        lines += [
            "| | on the step, us | ratio | of the floor | CPU, us | ratio | bytes | ratio |",
            "|---|" + "---:|" * 7,
        ]
        rows = [(*cost, size) for cost, size in zip(costs, sizes, strict=True)]
        for variant, row in zip(chosen, rows, strict=True):
            cells = [f"{number:,.1f} | {share(number / whole)}" for number, whole in zip(row, rows[0], strict=True)]
            cells.insert(1, f"{row[0] / rows[-1][0]:,.1f}")
            lines.append(f"| {variant.name} | {' | '.join(cells)} |")
        ours = zip(("step", "cpu", "bytes"), rows[2], rows[0], strict=True)
        figures |= {f"{setting}: {key}": number / whole for key, number, whole in ours}
        lines.append("")
        shutil.rmtree(folder)
    return lines, figures


def share(ratio: float) -> str:
    return f"1/{1 / ratio:.1f}" if ratio < 0.5 else f"{ratio:.2f}"


def rate_and_reading(num_records: int) -> tuple[list[str], dict[str, float]]:
    """Write records as fast as they go, then read them back with both readers."""
    folder = Path(tempfile.mkdtemp())
    sink = TensorBoardSink(logging_dir=folder)
    sink.begin(RUN)
    samples = [sample_of(step) for step in range(1000)]
    began_s = time.perf_counter()
    for step in range(num_records):
        sink.write(samples[step % 1000])
    sink.end(RUN)
    num_scalars = num_records * NUM_VALUES
    rate = num_scalars / (time.perf_counter() - began_s)
    ours = [_timed(lambda: read_scalars(folder)) for _ in range(7)]
    ours_s, ours_cpu_s = (statistics.median(column) for column in zip(*ours, strict=True))
    theirs_s, theirs_cpu_s = _timed(lambda: EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload())
    found = sum(len(series.steps) for series in read_scalars(folder).values())
    assert found == num_scalars, f"{found:,} of {num_scalars:,} scalars read back"
    shutil.rmtree(folder)
    lines = [
        f"## {num_scalars:,} scalars in records of 20",
        "",
        f"Written at {rate:,.0f} scalars a second.",
        "",
        "| | wall, s | CPU, s |",
        "|---|---:|---:|",
        f"| read back by `read_scalars` | {ours_s:.2f} | {ours_cpu_s:.2f} |",
        f"| read back by `EventAccumulator` | {theirs_s:.2f} | {theirs_cpu_s:.2f} |",
        f"| ratio | {share(ours_s / theirs_s)} | {share(ours_cpu_s / theirs_cpu_s)} |",
        "",
    ]
    return lines, {"scalars_per_s": rate, "read_s": ours_s * 1e6 / num_scalars, "read": ours_s / theirs_s}


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds; on a busy machine they are far apart."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def broken_promises(figures: dict[str, float]) -> list[str]:
    broken = []
    for name, figure in figures.items():
        promised = PROMISED.get(name) or PROMISED[name.split(": ")[-1]]
        if figure < promised if name == "scalars_per_s" else figure > promised:
            broken.append(f"{name}: {figure:.4g}, promised {promised:.4g}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    parser.add_argument("--check", action="store_true", help="end with 1 when a promise is broken")
    parser.add_argument("--records", type=int, default=50_000, help="records of 20 to write and read back")
    parser.add_argument("--steps", type=int, default=REAL_STEPS, help="real steps for each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables, figures = writing(arguments.steps)
    more, more_figures = rate_and_reading(arguments.records)
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    head = [
        "# Sinks beside the peers",
        "",
        f"{date.today()}, Python {platform.python_version()}, {packages}, {platform.machine()}; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; made by `python benchmarks/sinks.py`. "
        "Ratios are to the first row.",
        "",
        "Promised: on the step 1/20, CPU 1/15, bytes 0.55; 500,000 scalars/s; reading 0.6 s a million and 1/15.",
        "",
    ]
    text = "\n".join(head + tables + more)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    broken = broken_promises(figures | more_figures)
    for line in broken:
        print(f"not kept: {line}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
