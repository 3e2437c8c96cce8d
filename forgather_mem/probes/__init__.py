"""Probes: works that read numbers and change nothing, except that they may open a measuring window."""

from forgather_mem.probes.cleanup_calls import CleanupProbe
from forgather_mem.probes.device import DeviceProbe
from forgather_mem.probes.host import HostProbe
from forgather_mem.probes.phases import PhaseProbe
from forgather_mem.probes.python import PythonProbe
from forgather_mem.probes.tensors import TensorProbe, live_tensors
from forgather_mem.probes.workers import WorkerProbe

__all__ = [
    "CleanupProbe",
    "DeviceProbe",
    "HostProbe",
    "PhaseProbe",
    "PythonProbe",
    "TensorProbe",
    "WorkerProbe",
    "live_tensors",
]
