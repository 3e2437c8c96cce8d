"""Parts of benchmarks/device.py about sizes: known tensors, headroom, several devices, a leak, error texts, advice.

Each is a function of the device's kind ("cuda", or "cpu" for `--dry`) that yields rows, in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from forgather_mem import TrainingLoop
from forgather_mem.actions.trim import trim_host
from forgather_mem.callbacks import MemoryAlert
from forgather_mem.diagnose.oom.messages import PINNED
from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.engine.run import Run
from forgather_mem.engine.summary import RunFacts
from forgather_mem.probes import DeviceProbe
from forgather_mem.system.allocator import current_allocator, used_allocators
from forgather_mem.system.headroom import device_room
from forgather_mem.telemetry.records import Work
from forgather_mem.units import GIB, MIB, format_bytes

ROOT = Path(__file__).parent.parent
# Bytes: cudaMallocAsync counts in the driver's own units, and the last block need not fit into what is left
ROUNDED_BYTES, HEADROOM_ERROR_FRAC = 2 * MIB, 0.02


class Row(NamedTuple):
    """One line of the table. `ok` is None for what is measured and not judged, or could not be tried here."""

    what: str
    figures: str
    ok: bool | None = None


def hold(num_bytes: int, device: str) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def fill(device: str, *sizes: int) -> list[torch.Tensor]:
    """Blocks of each size, until no further one can be had."""
    blocks: list[torch.Tensor] = []
    for size in sizes:
        while True:
            try:
                blocks.append(hold(size, device))
            except torch.OutOfMemoryError:
                break
    return blocks


def leave(num_bytes: int, device: str) -> None:
    """From now on this process may take so much more: on the device, or of addresses."""
    if device == "cpu":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, resource.RLIM_INFINITY))
        return
    torch.zeros(1, device=device)
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + num_bytes) / total)


# ---- known tensors against the statistics and the headroom ----


def known(device: str) -> Iterator[Row]:
    """Run with each allocator: native, expandable segments, cudaMallocAsync."""
    hold(1, device)
    native = torch.cuda.get_allocator_backend() == "native"
    run = Run(RunFacts())
    probe = DeviceProbe(reset_peaks=True).begin(run)
    wrong = []
    for mib in (1, 8, 64, 512):
        before = _values(probe)
        block = hold(mib * MIB, device)
        held = _values(probe)["device/allocated_bytes"] - before["device/allocated_bytes"]
        del block
        peak = _values(probe)["device/step_peak_bytes"] - before["device/allocated_bytes"]
        if max(abs(held - mib * MIB), abs(peak - mib * MIB)) > (0 if native else ROUNDED_BYTES):
            wrong.append(f"{mib} MiB: held {held / MIB:.2f}, peak {peak / MIB:.2f}")
    yield Row("tensors of 1, 8, 64, 512 MiB", "; ".join(wrong) or "held and at the peak, to the byte", not wrong)
    torch.cuda.empty_cache()
    yield _headroom("headroom of the whole card", device, 256 * MIB)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.1)
    hold(300 * MIB, device)  # freed: unused, and in the headroom
    yield _headroom("headroom under a fraction of 0.1", device, 64 * MIB)
    values = _values(probe)
    counted = values.get("device/ooms")
    says = "not counted" if counted is None else f"{counted:.0f} counted"
    yield Row("errors of the allocator", says, bool(counted) if native else counted is None)
    run.close()


def _values(probe: Work) -> dict[str, float]:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # cudaMallocAsync frees in the order of the stream
    return dict(probe(None, None))  # type: ignore[arg-type]  # it looks at neither


def _headroom(what: str, device: str, block_bytes: int) -> Row:
    room, before = device_room(), torch.cuda.memory_allocated()
    assert room is not None
    blocks = fill(device, block_bytes, 16 * MIB)
    taken = sum(block.numel() for block in blocks)
    error = taken / room.free_bytes - 1
    del blocks
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + MIB
    figures = f"told {format_bytes(room.free_bytes)}, taken {format_bytes(taken)} ({error:+.1%})"
    return Row(what, figures, abs(error) <= HEADROOM_ERROR_FRAC)


# ---- several devices ----


def several(device: str) -> Iterator[Row]:
    count = torch.cuda.device_count() if device == "cuda" else 1
    if count < 2:
        yield Row("a second device", f"not tried: there is {count} device")
        return
    has_context: Callable[[int], bool] = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009  # no stub has it
    kept = [hold(MIB, "cuda:0")]
    probe, run = DeviceProbe(reset_peaks=True), Run(RunFacts())
    first = _values(probe.begin(run))
    woken = [index for index in range(1, count) if has_context(index)]
    yield Row("unused devices stay asleep", f"contexts made: {woken or 'none'}", not woken)
    kept.append(hold(512 * MIB, "cuda:1"))
    second = _values(probe.begin(run))  # looks for other devices at once
    held = second.get("device1/allocated_bytes", 0)
    ok = held == 512 * MIB and "device1/allocated_bytes" not in first and len(used_allocators()) == 2
    yield Row("512 MiB on the second device", f"device1/allocated_bytes {format_bytes(held)}", ok)
    model = torch.nn.DataParallel(torch.nn.Linear(4096, 4096).to("cuda:0"))
    model(torch.ones(64, 4096, device="cuda:0")).sum().backward()
    indices = [allocator.index for allocator in used_allocators()]
    yield Row("nn.DataParallel", f"devices found: {indices}", indices == list(range(count)))


# ---- a leak, until the training dies of it ----


class _Died(Exception):
    """The end of the training by its leak."""


def leak(device: str) -> Iterator[Row]:
    alerts: list[Any] = []
    model = torch.nn.Linear(256, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainingLoop(model, optimizer, callbacks=[MemoryAlert({}, {}, 100, call=alerts.append)])
    each = 16 * MIB
    leave(150 * each, device)
    kept: list[torch.Tensor] = []
    found = None
    with contextlib.suppress(_Died), loop.train(), loop.epoch():
        while loop.state.global_step < 1000:
            try:
                with loop.step():
                    model(torch.ones(8, 256, device=device)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    kept.append(torch.ones(each, dtype=torch.uint8, device=device))
            except (RuntimeError, MemoryError) as error:
                kept.clear()  # else there is no memory on the host to go on with
                found = recognise(error)
                raise _Died from error
    died = loop.state.global_step + 1
    yield Row("its end", f"step {died}: {found}", found is not None)
    if not alerts:
        yield Row("forecast", "none came", False)
        return
    told = alerts[0]
    off = told.full_at_step - died
    figures = f"at step {told.step}: full at {told.full_at_step}; it was {died} ({off:+d})"
    yield Row("forecast against truth", figures, abs(off) <= max(3, 0.05 * (died - told.step)))


# ---- real out-of-memory errors ----


def _recognised(
    what: str,
    fail: Callable[[], object],
    kinds: tuple[str, ...] = (),
    wanted: int | None = None,
    *,
    may_fit: bool = False,
) -> Row:
    try:
        fail()
    except Exception as error:  # noqa: BLE001  # whatever a library raises: that is the question
        found = recognise(error)
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        if found is None:
            return Row(what, f"NOT RECOGNISED: {type(error).__name__}: {first}", False)
        sized = wanted is None or (found.requested_bytes is not None and abs(found.requested_bytes / wanted - 1) < 0.01)
        right = not kinds or found.kind in kinds
        return Row(what, f"{found.kind}, {found.where}: {first}", right and sized)
    return Row(what, "no error came", None if may_fit else False)


def oom_allocator(device: str) -> Iterator[Row]:
    if device == "cpu":
        yield _recognised("the CPU allocator", lambda: hold(2**50, device), ("CPU allocator",), 2**50)
        return
    leave(GIB, device)
    yield _recognised("torch's allocator", lambda: hold(2 * GIB, device), ("CUDA allocator",), 2 * GIB)


def oom_graphs(device: str) -> Iterator[Row]:
    leave(2 * GIB, device)
    wide, graph = torch.zeros(8192, 8192, device=device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # 256 MiB that stays in the graph's pool, and as much again that only the graph can use
        out = (wide + 1) + 2
    room = device_room()
    assert room is not None
    blocks = fill(device, 64 * MIB, 16 * MIB)
    taken = sum(block.numel() for block in blocks)
    figures = f"told {format_bytes(room.free_bytes)}, taken {format_bytes(taken)}"
    yield Row("headroom beside a graph's pool", figures, abs(taken - room.free_bytes) <= 64 * MIB)
    try:
        hold(GIB, device)
    except torch.OutOfMemoryError as error:
        found = recognise(error)
        pools = None if found is None else found.private_pools_bytes
        says = "not said" if pools is None else format_bytes(pools)
        yield Row("private pools in the message", f"{says}: {str(error)[:200]}", pools is not None)
    assert out.shape == wide.shape


def oom_pinned(device: str) -> Iterator[Row]:
    hold(1, device)
    # 16 TiB: more than any machine has, so that it is refused at once
    yield _recognised(
        "pinned host memory", lambda: torch.empty(2**44, dtype=torch.uint8, pin_memory=True), (PINNED, "CPU allocator")
    )


def oom_cublas(device: str) -> Iterator[Row]:
    square = torch.ones(1024, 1024, device=device)
    kept = _fill_the_driver(device)
    yield _recognised("cuBLAS, first product on a full card", lambda: (square @ square).sum().item(), may_fit=True)
    del kept


def oom_cudnn(device: str) -> Iterator[Row]:
    images = torch.ones(8, 64, 224, 224, device=device)
    conv = torch.nn.Conv2d(64, 64, 3, padding=1).to(device)
    kept = _fill_the_driver(device)
    yield _recognised("cuDNN, first convolution on a full card", lambda: conv(images).sum().item(), may_fit=True)
    del kept


def _fill_the_driver(device: str) -> list[torch.Tensor]:
    """Nothing is left for a library; what torch allocates for it comes from torch's own cache."""
    spare = hold(512 * MIB, device)
    kept = fill(device, GIB, 32 * MIB, MIB)
    del spare
    return kept


# ---- the first advice, applied as it stands ----


def advice(device: str) -> Iterator[Row]:
    from ooms import options_of

    script = [str(Path(__file__).with_name("_device_oom.py")), "--use_cpu", str(device == "cpu")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        watched = _run(["-m", "forgather_mem", "run", "--report", str(report), *script], folder)
        if not report.exists():
            yield Row("out of memory, explained", f"no report; exit {watched.returncode}: {_end(watched)}", False)
            return
        found = json.loads(report.read_text())
        oom, entries = found.get("oom") or {}, found.get("advice") or []
        ok = watched.returncode != 0 and oom.get("phase") in ("forward", "backward")
        yield Row("out of memory, explained", f"exit {watched.returncode}, phase {oom.get('phase')}", ok)
        if not entries:
            yield Row("first advice, applied", "there was none", False)
            return
        options = options_of(entries[0])
        helped = _run([*script, *options], folder)
        figures = f"{' '.join(options) or entries[0]['text']}: exit {helped.returncode}"
        yield Row(
            "first advice, applied", figures + (f", {_end(helped)}" if helped.returncode else ""), not helped.returncode
        )


def _run(words: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # a Trainer would use all of them
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": first}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _end(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or ["no output"]
    return lines[-1][:200]


# ---- pinned memory ----


def pinned(device: str) -> Iterator[Row]:
    hold(1, device)

    def kept_bytes() -> int:
        return int(torch.cuda.host_memory_stats().get("allocated_bytes.current", -1))

    rss = _rss_bytes()
    block = torch.empty(512 * MIB, dtype=torch.uint8, pin_memory=True)
    block.zero_()
    yield Row("512 MiB pinned", f"torch counts {format_bytes(kept_bytes())}, RSS +{format_bytes(_rss_bytes() - rss)}")
    del block
    kept = kept_bytes()
    trim_host()
    freed = kept - kept_bytes()
    figures = f"torch kept {format_bytes(kept)}; a trim gave back {format_bytes(freed)}"
    yield Row("what torch keeps of it, trimmed", figures, freed >= 512 * MIB)
    assert current_allocator() is not None


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
