"""Each row of the table of metrics is read in a real training: a row alone is a promise that nothing keeps."""

import os
import sys
from pathlib import Path

import pytest

from forgather_mem import AtEvent, Every, Rule
from forgather_mem.actions import ClearCache, Collect, TrimHost
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe
from forgather_mem.sinks import Capture
from forgather_mem.system import nvml
from forgather_mem.telemetry.metrics import METRICS
from tests.simulated_device import simulated_device
from tests.system.test_nvml import PaperNvml
from tests.training import make_trainer

# Of several ranks; tests/probes/test_ranks.py reads them on a real store
_RANKS = "ranks/"
_TEST_OF_RANKS = Path(__file__).parent.parent / "probes" / "test_ranks.py"


def read_in_a_training(folder: Path) -> set[str]:
    """The names that all our probes and actions together have read."""
    capture = Capture()
    host = HostProbe(slow_every_s=0.001, budget_frac=1.0)
    probes = [
        host,
        DeviceProbe(others=True, budget_frac=1.0),
        PythonProbe(0.001, budget_frac=1.0),
        PhaseProbe(budget_frac=1.0),
        WorkerProbe(every_s=0.001, budget_frac=1.0),
    ]
    rules = [
        Rule(when=Every(steps=1), do=[*probes, Collect(), ClearCache(), TrimHost()]),
        Rule(when=Every(steps=1, at="pre_optimizer_step"), do=[TensorProbe(budget_frac=1.0)]),
        Rule(when=AtEvent("train_end"), do=[host]),
    ]
    callback = MemoryCallback(rules=rules, sinks=[capture])
    make_trainer(folder, [callback], dataloader_num_workers=1, dataloader_persistent_workers=True).train()
    return {name for sample in capture.samples for name in sample.values}


@pytest.mark.fresh
def test_each_row_is_read_on_the_host_or_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_in_a_training(tmp_path / "host")
    monkeypatch.setitem(sys.modules, "pynvml", PaperNvml({os.getpid(): 5, 1: 7}))
    monkeypatch.setattr(nvml, "_handle", lambda allocator: allocator)
    with simulated_device(monkeypatch) as device:
        device.hold(100.0)
        read |= read_in_a_training(tmp_path / "device")
    rows = [row.name.partition("{}") for row in METRICS if not row.name.startswith(_RANKS)]
    missing = [
        f"{head}{phase}{tail}"
        for head, phase, tail in rows
        if not any(name.startswith(head) and name.endswith(tail) for name in read)
    ]
    assert missing == [], "no probe has read these: compare the names in the table and in the probe"


def test_each_row_of_ranks_is_read_in_their_own_test() -> None:
    text = _TEST_OF_RANKS.read_text(encoding="utf-8")
    assert [row.name for row in METRICS if row.name.startswith(_RANKS) and row.name not in text] == []
