"""Settings of readings that keep to a budget say what is wrong with them."""

import pytest

from forgather_mem.probes import DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe


@pytest.mark.parametrize("probe", [DeviceProbe, HostProbe, PhaseProbe, PythonProbe, TensorProbe, WorkerProbe])
def test_a_budget_is_a_share_and_a_period_is_a_time(probe: type) -> None:
    with pytest.raises(ValueError, match=rf"{probe.__name__}.*budget_frac"):
        probe(budget_frac=-0.1)
    for setting in {"every_s", "slow_every_s"}.intersection(vars(probe())):
        with pytest.raises(ValueError, match=rf"{probe.__name__}.*{setting}"):
            probe(**{setting: -1.0})
