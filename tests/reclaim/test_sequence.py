"""Collect, clear and trim, one after the other."""

import weakref

import pytest
import torch

from forgather_mem.reclaim.release import cleanup
from forgather_mem.units import MIB
from tests.programs import no_collections
from tests.reclaim.things import a_cycle
from tests.simulated_device import simulated_device

# What other tests have left in the process, as a plan's, is no part of what is measured
pytestmark = pytest.mark.alone(forked=True)


def test_garbage_in_cycles_is_collected_and_tensors_from_before_are_no_leftover() -> None:
    kept = torch.ones(MIB)
    with no_collections(), cleanup(report=False) as job:
        cycle = a_cycle()
        assert cycle() is not None
    assert cycle() is None
    assert job.report is not None
    assert job.report.num_objects >= 1
    assert (job.report.kept_bytes, job.report.kept) == (0, ())
    assert kept.numel() == MIB


def test_what_a_job_made_is_gone_when_the_host_is_trimmed() -> None:
    with cleanup(report=False) as job:
        model = torch.nn.Linear(2048, 2048)
        watched = weakref.ref(model.weight)
        model.owner = [model]
        del model
    assert watched() is None
    assert job.report is not None
    assert job.report.end.host_bytes - job.report.after.host_bytes > 12 * MIB


def test_the_devices_cache_is_emptied_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(device, "reserved", device.allocated))
        device.hold(100)
        with cleanup(report=False) as job:
            device.spike(400)
    assert job.report is not None
    steps = [step.device_bytes for step in (job.report.start, job.report.end, job.report.after)]
    assert steps == [100 * MIB, 500 * MIB, 100 * MIB]
    assert "GPU 0 reserved 100.0 MiB -> 500.0 MiB -> 100.0 MiB" in str(job.report)
