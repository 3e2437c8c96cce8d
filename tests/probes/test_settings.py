"""What all probes have in common: they are settings, which are checked, compared and copied as values."""

import dataclasses
import pickle
from typing import Any

import pytest

from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe


@pytest.mark.parametrize("kind", [DeviceProbe, HostProbe, PhaseProbe, TensorProbe, WorkerProbe])
def test_equal_settings_are_read_once_and_others_by_themselves(kind: type[Any]) -> None:
    other = dataclasses.replace(kind(), budget_frac=0.5)
    assert kind().reading == pickle.loads(pickle.dumps(kind())).reading == kind().reading != other.reading
    assert other.budget_frac == 0.5


def test_the_collector_is_read_once_however_often_it_counts() -> None:
    assert PythonProbe().reading == PythonProbe(5.0).reading
