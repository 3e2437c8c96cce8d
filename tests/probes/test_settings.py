"""What all probes have in common: they are settings, which are checked, compared and copied as values."""

import dataclasses
import pickle
from typing import Any

import pytest

from forgather_mem.actions import TrimHost
from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe

SECONDS = [(HostProbe, "slow_every_s"), (PythonProbe, "tracked_every_s"), (WorkerProbe, "every_s")]
SHARES = [(kind, "budget_frac") for kind in (DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe)]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((kind, name, value) for kind, name in SECONDS for value in (0, -1.0)),
        *((kind, name, value) for kind, name in (*SHARES, (TrimHost, "budget_frac")) for value in (0, -1, 1.5)),
    ],
)
def test_a_wrong_value_is_named(kind: type[Any], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}\({name}={value}\): give "):
        kind(**{name: value})


@pytest.mark.parametrize("kind", [DeviceProbe, HostProbe, PhaseProbe, TensorProbe, WorkerProbe])
def test_equal_settings_are_read_once_and_others_by_themselves(kind: type[Any]) -> None:
    other = dataclasses.replace(kind(), budget_frac=0.5)
    assert kind().reading == pickle.loads(pickle.dumps(kind())).reading == kind().reading != other.reading
    assert other.budget_frac == 0.5


def test_the_collector_is_read_once_however_often_it_counts() -> None:
    assert PythonProbe().reading == PythonProbe(5.0).reading
