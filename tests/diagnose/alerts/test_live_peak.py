"""The sampled peak of known allocations."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from forgather_mem.diagnose.alerts.live_peak import LivePeak
from forgather_mem.system.native_heap import allocated_natively_bytes

SIZE = 64 << 20


@pytest.mark.fresh
def test_it_sees_what_is_freed_before_it_stops() -> None:
    before = allocated_natively_bytes()
    peak = LivePeak()
    assert before is not None
    assert peak.start()
    tensor = torch.ones(SIZE // 4)
    time.sleep(0.1)
    del tensor
    found = peak.stop()
    assert found is not None
    assert found - before == pytest.approx(SIZE, rel=0.05)


@pytest.mark.fresh
def test_its_thread_ends_with_it() -> None:
    peak = LivePeak()
    assert peak.start()
    peak.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forgather-mem: peak")]
    peak.stop()
