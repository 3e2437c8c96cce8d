import gc

import pytest

from forgather_mem.actions import Collect
from forgather_mem.units import MIB
from tests.actions.conftest import Act
from tests.memory import touched
from tests.reclaim.things import Cycle

pytestmark = pytest.mark.usefixtures("uncollected")


@pytest.mark.parametrize("mib", [1, 8, 64, 512])
def test_what_a_dropped_cycle_held_is_reported_as_freed(act: Act, mib: int) -> None:
    gc.collect()
    Cycle(mib)
    values = act(Collect())
    assert values["collect/freed_bytes"] == pytest.approx(mib * MIB, abs=MIB)
    assert values["collect/objects"] >= 1
    assert values["collect/time_s"] > 0


def test_a_collection_of_nothing_frees_nothing(act: Act) -> None:
    held = touched(8)
    gc.collect()
    values = act(Collect())
    assert values["collect/objects"] == 0
    assert values["collect/freed_bytes"] < MIB
    held.close()


def test_a_young_collection_leaves_aged_cycles_alone(act: Act) -> None:
    gc.collect()
    old = Cycle(8)
    gc.collect(0)
    gc.collect(1)
    del old
    assert act(Collect(generation=0))["collect/freed_bytes"] < MIB
    assert act(Collect())["collect/freed_bytes"] == pytest.approx(8 * MIB, abs=MIB)


@pytest.mark.parametrize("generation", [-1, 3, None, "2"])
def test_a_generation_that_does_not_exist_is_refused(generation: object) -> None:
    with pytest.raises(ValueError, match="the generations are 0, 1 and 2"):
        Collect(generation=generation)  # type: ignore[arg-type]
