"""Real faults, as functions: one of each in `make test`, fifty in `make soak`."""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from forgather_mem.formats.jsonl import LogReader
from forgather_mem.sinks import JsonlSink, TensorBoardSink
from forgather_mem.sinks.tags import tag_of
from forgather_mem.telemetry.metrics import metric_of
from forgather_mem.telemetry.records import Sample
from forgather_mem.testing.small_run import in_child
from tests.sinks.plain_run import PlainRun

NAMES = [f"mine/value_{i}_bytes" for i in range(20)]
TAG = tag_of(metric_of(NAMES[0]))
GIB = 2**30
Sinks = TensorBoardSink | JsonlSink


def sample(step: int) -> Sample:
    """A record of 20 numbers that follow from the step, so that every one can be checked."""
    values = {name: float((step + i) * GIB) for i, name in enumerate(NAMES)}
    return Sample(event="step_end", step=step, epoch=None, time_s=1e9 + step, values=values)


def steps_in(folder: Path, sink: Sinks) -> list[int]:
    """Steps that an independent reader finds, in order; checks each number on the way."""
    if isinstance(sink, JsonlSink):
        files = [path for path in folder.rglob("*.jsonl*") if path.is_file()]  # and no pipe, whose reader would wait
        lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
        found = [record for record in LogReader(*files) if isinstance(record, Sample)]
        assert all(json.loads(line) for line in lines if line.endswith(b"\n") and line.strip())
        assert found == [sample(record.step) for record in found]
        return [record.step for record in found]
    steps: list[int] = []
    for file in sorted(folder.rglob("*tfevents*")):
        if file.stat().st_size == 0:
            continue
        reader = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for i, name in enumerate(NAMES):
            if tag_of(metric_of(name)) in reader.Tags()["scalars"]:
                points = reader.Scalars(tag_of(metric_of(name)))
                assert all(point.value == pytest.approx(point.step + i) for point in points)
        if TAG in reader.Tags()["scalars"]:
            steps += [point.step for point in reader.Scalars(TAG)]
    return steps


def new_sink(kind: str, folder: Path) -> Sinks:
    if kind == "tensorboard":
        return TensorBoardSink(logging_dir=folder)
    return JsonlSink(folder / "memory.rank0.jsonl")


def begun(kind: str, folder: Path) -> Sinks:
    sink = new_sink(kind, folder)
    sink.begin(PlainRun())
    return sink


def write(sink: Sinks, steps: range) -> None:
    for step in steps:
        sink.write(sample(step))


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "256k") -> Iterator[Path]:
    """A tmpfs of that size; skips where mounting is refused."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def disk_full(kind: str, tmp_path: Path, seed: int) -> None:
    """The disk fills up in the middle of a record, is full for a while, and has space again."""
    chance = random.Random(seed)
    with small_disk(tmp_path / "disk") as disk:
        sink = begun(kind, disk / "run")
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * chance.randrange(120_000, 200_000))
        step = 0
        while sink.problems() is None:
            step += 1
            sink.write(sample(step))
            assert step < 10_000, "the disk never became full"
        first_lost = step
        last_lost = first_lost + chance.randrange(1, 300)
        write(sink, range(first_lost + 1, last_lost + 1))
        assert str(last_lost - first_lost + 1) in (sink.problems() or "").replace(",", "")
        assert steps_in(disk, sink) == list(range(1, first_lost))
        ballast.unlink()
        time.sleep(0.4)  # longer than the pause before the next try
        write(sink, range(last_lost + 1, last_lost + 11))
        sink.end(PlainRun())
        assert steps_in(disk, sink) == [*range(1, first_lost), *range(last_lost + 1, last_lost + 11)]


def read_only(kind: str, tmp_path: Path, seed: int) -> None:
    """The folder can't be written at first (a read-only mount: root may write anywhere else), then it can."""
    with small_disk(tmp_path / "disk") as disk:
        _remount(disk, "ro")
        sink = begun(kind, disk / "run")
        write(sink, range(1, 11 + seed))
        assert "Read-only file system" in (sink.problems() or "")
        assert str(10 + seed) in (sink.problems() or "")
        _remount(disk, "rw")
        time.sleep(0.2)
        write(sink, range(101, 106))
        sink.end(PlainRun())
        assert steps_in(disk, sink) == [101, 102, 103, 104, 105]


def folder_deleted(kind: str, tmp_path: Path, seed: int) -> None:
    """Somebody deletes the run's folder: what was lost is counted, and a new file takes the rest."""
    folder = tmp_path / "run"
    sink = begun(kind, folder)
    write(sink, range(1, 6 + seed))
    shutil.rmtree(folder)
    write(sink, range(101, 104))
    time.sleep(0.55)  # the link count is looked at twice a second
    write(sink, range(201, 211))
    problem = sink.problems() or ""
    sink.end(PlainRun())
    assert steps_in(folder, sink) == list(range(201, 211))
    assert "the file was deleted" in problem
    # Deleted with the folder, or written into the deleted file.
    assert problem.startswith(("TensorBoard: ", "JSONL: "))
    assert int(problem.split(": ")[1].split(" of ")[0]) in range(3, 5 + seed + 3 + 2)


def slow_reader(tmp_path: Path, seed: int) -> None:
    """A pipe whose reader is slow: writes block, so records go out in batches, and none is lost or torn."""
    pipe, slow = tmp_path / "memory.rank0.jsonl", tmp_path / "slow"
    os.mkfifo(pipe)
    slow.touch()
    both_ends = os.open(pipe, os.O_RDWR)
    fcntl.fcntl(both_ends, 1031, 4096)  # F_SETPIPE_SZ: a page, so that the writer soon waits
    code = (
        "import os, sys, time\n"
        "kept = b''\n"
        "with open(sys.argv[1], 'rb', buffering=0) as pipe:\n"
        "    while chunk := pipe.read(4096):\n"
        "        kept += chunk\n"
        "        time.sleep(0.1 if os.path.exists(sys.argv[2]) else 0.0)\n"
        "sys.stdout.buffer.write(kept)\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, str(pipe), str(slow)], stdout=subprocess.PIPE)
    sink = JsonlSink(pipe)
    sink.begin(PlainRun())
    step = 0
    while "slow writes" not in (sink.problems() or ""):
        step += 1
        sink.write(sample(step))
        assert step < 1000, "a pipe that blocks is not noticed"
    took_s = []
    for _ in range(30 + seed):  # these wait in memory: the pipe would take 3 s
        step += 1
        before = time.monotonic()
        sink.write(sample(step))
        took_s.append(time.monotonic() - before)
    problem = sink.problems() or ""
    os.close(both_ends)
    slow.unlink()
    sink.end(PlainRun())
    arrived, _ = reader.communicate(timeout=60)
    (tmp_path / "arrived.jsonl").write_bytes(arrived)
    assert steps_in(tmp_path, sink) == list(range(1, step + 1))
    assert "dropped" not in problem
    assert sorted(took_s)[len(took_s) // 2] < 0.01


def killed(kind: str, tmp_path: Path, seed: int) -> None:
    """kill -9 at a random moment: every record whose `write` returned is read by TensorBoard."""
    code = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from tests.sinks.faults import begun, sample\n"
        "sink = begun(sys.argv[1], Path(sys.argv[2]))\n"
        "step = 0\n"
        "while True:\n"
        "    step += 1\n"
        "    sink.write(sample(step))\n"
        "    os.write(1, b'%d\\n' % step)\n"  # one acknowledgement, one write
    )
    root = Path(__file__).resolve().parents[2]
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-c", code, kind, str(folder)], stdout=subprocess.PIPE, cwd=root, bufsize=0
    )
    got = child.stdout.read(1)
    until = time.monotonic() + random.Random(seed).uniform(0.0, 0.04)
    while time.monotonic() < until:
        got += child.stdout.read(65536)
    child.send_signal(signal.SIGKILL)
    got += child.stdout.read()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    acknowledged = int(got[: got.rindex(b"\n")].split()[-1])
    found = steps_in(folder, new_sink(kind, folder))
    assert found == list(range(1, len(found) + 1))
    assert acknowledged <= len(found) <= acknowledged + 1


def forked(kind: str, tmp_path: Path, seed: int) -> None:
    """A child that inherits the sink writes nothing and does not hang; the parent goes on."""
    sink = begun(kind, tmp_path / "run")
    write(sink, range(1, 4 + seed))

    def child() -> str | None:
        write(sink, range(1001, 1011))
        sink.end(PlainRun())
        return sink.problems()

    assert in_child(child) is None
    write(sink, range(4 + seed, 8 + seed))
    sink.end(PlainRun())
    assert sink.problems() is None
    assert steps_in(tmp_path / "run", sink) == list(range(1, 8 + seed))


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True, capture_output=True)
