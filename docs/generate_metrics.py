"""Writes docs/metrics.md from the table forgather_mem/telemetry/metrics.txt.

    python docs/generate_metrics.py

A test compares the committed file with what this gives; run it after a change of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.metrics import FLOW, METRICS, TOTAL, Metric

PAGE = Path(__file__).with_name("metrics.md")

# First segment of the tag: title of the section and what to know about all of its metrics.
GROUPS = {
    "host": (
        "Host memory",
        "Group `host`. Resident size, anonymous memory and the run's peak are in every record. What is left below "
        "the limit is read once a second, the rest at most every 10 s, and less often where reading is slow; in "
        "between, these names are absent.",
    ),
    "gpu": (
        "Device memory",
        "Group `device`. `{i}` is the number of this process's current device; on every rank the sample names are "
        "the same. Nothing is written without an accelerator, or before the script first uses it.\n\n"
        'Other devices on which this process holds memory (`nn.DataParallel`, `device_map="auto"`) are read beside it, '
        "each under its own number: `device1/allocated_bytes` and so on for every row, with the tag "
        "`mem_gpu1/allocated_gib`. A device is found within a second of its first use; one that this process does not "
        'use is never woken. Rules can name them: `Above("device1/reserved_frac", "90%")`. Phases and leaks are those '
        "of the current device; a clear counts on all of them.",
    ),
    "phase_host": ("Host peaks of each phase", "Group `phases`. `{}` is one of the phases below."),
    "phase_gpu": ("Device peaks of each phase", "Group `phases`. `{}` is one of the phases below."),
    "gc": ("Python's garbage collector", "Group `gc`."),
    "collect": ("Collections by our callbacks", "Written when one of our callbacks has collected."),
    "cache": (
        "Clears of the device cache",
        "Written when one of our callbacks has cleared the cache; other clears don't count.",
    ),
    "trim": ("Host memory given back", "Written when our `TrimHost` action has run."),
    "tensors": (
        "What the memory consists of",
        "Group `tensors`. A storage that several tensors share is counted once.",
    ),
    "workers": ("Data workers", "Group `workers`. Pages shared by several processes are counted once."),
    "step": ("Time", "In every record."),
    "ranks": ("Comparing ranks", "Rank 0 reads what the other ranks have put in the store; no rank waits."),
}

HEAD = """\
<!-- Written by docs/generate_metrics.py from forgather_mem/telemetry/metrics.txt. Change those, then run it. -->
# Metrics

Every number has two names. JSONL records and rules use the **sample name**, as in `Above("device/reserved_frac",
"90%")`; there sizes are bytes, times are seconds and shares are fractions. The TensorBoard page shows the **tag**,
which ends in its unit.

```python
from forgather_mem.telemetry.metrics import metric_of

row = metric_of("device/step_peak_bytes")
print(row.tag, row.unit, "|", row.meaning)
```
<!-- output -->
```text
gpu/step_peak_gib GiB | Allocator peak since the last step (reset every step unless reset_peaks is false).
```

## Reading the numbers

- **Units.** 1 MiB is 2**20 bytes, 1 GiB is 2**30 bytes. The trackers (`MemoryMonitor`, `track_memory`, ...) print the
  word "MB" and mean MiB.
- **A reading that does not exist is absent.** It is never 0, -1 or NaN: no device, no number for the device.
- **When.** Gauges show the state at the end of an optimizer step. Gauges read at another event have tags of their
  own: `mem_host/evaluate_rss_gib`. What is read only now and then has one tag for all events. A "sum" adds up what
  happened within the step; a "total" only grows.
- **Extremes.** TensorBoard keeps 1000 random points of a tag, so a single spike can vanish from its curve. Tags
  marked "highest so far" or "lowest so far" can't lose it. Their points are at the steps, so a peak in an
  evaluation shows with the next step, and in the report.
- **Your own names.** Your own probes may return any name; the endings `_bytes`, `_frac` and `_s` select the unit.

## Why nvidia-smi shows more

It answers a different question. There are four layers, each of which includes the one before it:

| what | counted by | where to see it |
|---|---|---|
| tensors that are alive | PyTorch's allocator | `device/allocated_bytes` |
| + blocks kept for reuse (the cache) | PyTorch's allocator | `device/reserved_bytes` |
| + CUDA context, kernels, cuBLAS and cuDNN workspaces, NCCL buffers | the driver | nvidia-smi, the process's line |
| + other processes on the same card | the driver | nvidia-smi, the card's line; `device/others_bytes` (extra `nvml`) |

So nvidia-smi stays high after `del tensor`: the block went into the cache, and only clearing the cache gives it back
to the driver. The third layer is hundreds of MiB, depends on the driver and the libraries, and no call frees it.
nvidia-smi has no peak: it misses what happens between two of its readings, while `device/step_peak_bytes` misses
nothing. What this process can still allocate is `device/headroom_bytes`, which starts from the driver's free memory
and so accounts for all four layers.

On the host it is the same: `host/rss_bytes` is what `top` calls RES and counts mapped files (a data set, a checkpoint)
that the kernel can drop at once; `host/anon_bytes` leaves them out, and shared memory, too (`host/shmem_bytes`). A
container's own figure adds the page cache of every file written; `host/limit_used_frac` leaves out what can be
dropped, because only the rest can get the process killed.
"""

PHASE_HEAD = """
## Phases

Phases appear in `phase/host/{}_peak_bytes`, in the report's peaks and in out-of-memory reports. Everything inside an
evaluation, a checkpoint or a text generation belongs to that phase: its forward passes do not count as `forward`.
"""

# What a phase covers in a Trainer.
COVERS = {
    "startup": "From the beginning of the training to the first batch",
    "data": "Fetching the next batches from the data loader",
    "forward": "`compute_loss`: the model's forward pass and the loss",
    "backward": "The backward pass",
    "optimizer": "From the end of gradient clipping to the end of the optimizer step",
    "evaluate": "An evaluation or prediction loop",
    "save": "Writing a checkpoint",
    "resume": "Loading a checkpoint",
    "generate": "Generating text in a callback",
    "other": "Everything else, and everything without a link to a trainer",
}


def page() -> str:
    """The text of docs/metrics.md."""
    return "\n".join([HEAD, *_sections(), PHASE_HEAD, *_phase_table()]) + "\n"


def _sections() -> Iterator[str]:
    by_group: dict[str, list[Metric]] = {}
    for metric in METRICS:
        by_group.setdefault(metric.tag.split("/")[0], []).append(metric)
    for group, rows in by_group.items():
        title, note = GROUPS[group]  # a KeyError here: give the new group a title above
        yield f"## {title}\n\n{note}\n"
        yield "| sample name | TensorBoard tag | unit | meaning |\n|---|---|---|---|"
        yield from (_row(metric) for metric in rows)
        yield ""


def _row(metric: Metric) -> str:
    tags = [f"`{_whole(metric.tag)}`{_extreme(metric.running)}"]
    if metric.extreme_tag:
        tags.append(f"`{_whole(metric.extreme_tag)}`{_extreme('max')}")
    unit = metric.unit + {FLOW: ", sum", TOTAL: ", total"}.get(metric.kind, "")
    cells = (f"`{metric.name}`", ", ".join(tags), unit, metric.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _whole(tag: str) -> str:
    group, _, rest = tag.partition("/")
    return f"mem_{group}{'{i}' if group.endswith('gpu') else ''}/{rest}"


def _extreme(running: str) -> str:
    return {"max": " (highest so far)", "min": " (lowest so far)"}.get(running, "")


def _phase_table() -> Iterator[str]:
    yield "| phase | what it covers |\n|---|---|"
    yield from (f"| `{phase}` | {COVERS[phase]} |" for phase in PHASES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
