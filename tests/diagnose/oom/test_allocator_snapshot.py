"""Snapshots of an allocator: limited in size and time, and nothing of somebody else's is stopped."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.diagnose.oom import allocator_snapshot
from forgather_mem.diagnose.oom.allocator_snapshot import Snapshot
from tests.simulated_device import simulated_device


class Recorder:
    """torch's recording of allocations, as far as it is asked here."""

    def __init__(self, size: int) -> None:
        self.size, self.on, self.calls = size, False, []  # type: ignore[var-annotated]

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.on, raising=False)
        patch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        patch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [b"x" * 1000] * self.size})

    def record(self, enabled: str | None = "all", **settings: Any) -> None:
        self.on = enabled is not None
        self.calls.append((enabled, settings))


def test_what_was_recorded_since_the_start_is_written_for_torchs_viewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_device(monkeypatch):
        recorder = Recorder(3)
        recorder.patch(monkeypatch)
        one = Snapshot(max_entries=500)
        assert one.write(tmp_path, 2) is None, "nothing is recorded yet"
        one.start()
        path = one.write(tmp_path / "new", 2)
        one.stop()
        one.stop()
    assert recorder.calls == [("all", {"max_entries": 500, "stacks": "python"}), (None, {})]
    assert path == str(tmp_path / "new" / "snapshot.rank2.pickle")
    assert pickle.loads(Path(path).read_bytes()) == {"segments": [b"x" * 1000] * 3}


def test_without_a_device_nothing_is_recorded(tmp_path: Path) -> None:
    one = Snapshot()
    one.start()
    assert one.write(tmp_path, 0) is None
    one.stop()
    assert not list(tmp_path.iterdir())


def test_a_snapshot_that_is_too_large_or_slow_is_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_device(monkeypatch):
        recorder = Recorder(1)
        recorder.patch(monkeypatch)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: [bytes([n % 256]) * 70_000 for n in range(100)])
        for bounds in ({"max_mb": 1}, {"max_s": 0.0}):
            one = Snapshot(**bounds)  # type: ignore[arg-type]
            one.start()
            assert one.write(tmp_path, 0) is None
            one.stop()
            assert not list(tmp_path.iterdir())
        recorder.on, recorder.calls = True, []
        theirs = Snapshot()
        theirs.start()
        theirs.stop()
        assert recorder.calls == [], "somebody else's recording goes on"
    assert allocator_snapshot.current_allocator() is None
