"""A container's limit is reached, and the kernel kills: on machines where a test may make a control group."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forgather_mem.system.cgroups import memory_groups
from forgather_mem.units import MIB
from tests.launch.commands import RUN, run, taken_apart

LIMIT_BYTES = 80 * MIB
NAMES = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max", "memory.swap.max")}


def limited_group() -> Path | None:
    """A new group with a limit, below the outermost one of ours that lets us."""
    for root, version in reversed(list(memory_groups())):
        limit, with_swap = NAMES[version]
        folder = Path(root) / f"forgather_mem_test_{time.time_ns()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(LIMIT_BYTES))
            except OSError:
                folder.rmdir()
                raise
            with suppress(OSError):  # a kernel that does not count swap
                (folder / with_swap).write_text(str(LIMIT_BYTES if version == 1 else 0))
            return folder
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    folder = limited_group()
    if folder is None:
        pytest.skip("no memory control group can be made here")
    yield folder
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        with suppress(OSError):  # the dead are still being taken out of it
            folder.rmdir()
        time.sleep(0.05)


def test_the_report_names_the_limit_and_the_kernels_counter(tmp_path: Path, group: Path) -> None:
    (tmp_path / "grows.py").write_text(
        "import time\nrows = []\nprint('begin', flush=True)\n"
        "for _ in range(1000):\n    rows.append(bytearray(2**22))\n    time.sleep(0.02)\n"
    )
    inside = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    result = taken_apart(run(["sh", "-c", inside, "sh", *RUN, "grows.py"], tmp_path))
    assert result.plain.out == "begin\n"
    assert result.plain.code == -9
    assert "KILLED BY THE KERNEL: the container's memory limit, 0.1 GiB, was reached" in result.report
    assert "(oom_kill 0 -> 1)" in " ".join(result.report.split())
    (path,) = tmp_path.glob("forgather_mem/*/report.json")
    report = json.loads(path.read_text())
    assert (report["host"]["limit_bytes"], report["host"]["limit_kind"]) == (LIMIT_BYTES, "cgroup")
    assert 0.4 * LIMIT_BYTES < report["host"]["rss_peak_bytes"] <= 1.1 * LIMIT_BYTES
