import pytest

from forgather_mem.actions import TrimHost, trim
from forgather_mem.units import MIB
from tests.actions.conftest import Act
from tests.fragments import Fragments, needs_glibc
from tests.memory import status_bytes


@needs_glibc
def test_what_glibc_kept_goes_back_to_the_system(act: Act) -> None:
    fragments = Fragments()
    fragments.leave_holes(80)
    before = status_bytes("VmRSS")
    action = TrimHost()
    values = act(action)
    after = status_bytes("VmRSS")
    assert values["trim/freed_bytes"] == pytest.approx(before - after, abs=MIB)
    assert values["trim/freed_bytes"] > 60 * MIB
    assert values["trim/time_s"] > 0
    fragments.close()


@needs_glibc
def test_trims_stay_within_their_share_of_the_time(act: Act) -> None:
    action = TrimHost(budget_frac=1e-6)
    assert act(action)
    assert act(action) == {}


def test_without_glibc_nothing_is_done(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "_malloc_trim", lambda: None)
    assert act(TrimHost()) == {}
