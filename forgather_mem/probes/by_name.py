"""Which probe reads a sample name."""

from __future__ import annotations

from forgather_mem.probes.device import DeviceProbe
from forgather_mem.probes.host import HostProbe
from forgather_mem.probes.python import PythonProbe
from forgather_mem.probes.workers import WorkerProbe
from forgather_mem.telemetry.metrics import name_on_current

# That of the whole name, else that of its family. Others are read by a rule only.
_PROBE_OF = {
    "host/children_pss_bytes": WorkerProbe,
    "host/other_children": WorkerProbe,
    "host/other_children_pss_bytes": WorkerProbe,
    "host": HostProbe,
    "device": DeviceProbe,
    "gc": PythonProbe,
    "workers": WorkerProbe,
}


def probe_of(name: str) -> type[HostProbe | DeviceProbe | PythonProbe | WorkerProbe] | None:
    """The class of the probe that reads this sample name without more arguments; None if only a rule can.

    >>> probe_of("host/rss_bytes").__name__, probe_of("host/children_pss_bytes").__name__, probe_of("mine/queue_len")
    ('HostProbe', 'WorkerProbe', None)
    """
    return _PROBE_OF.get(name) or _PROBE_OF.get(name_on_current(name).partition("/")[0])
