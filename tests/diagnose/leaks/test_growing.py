"""What is said of sizes that grow, taken together."""

from forgather_mem.diagnose.leaks.growing import floor_of, full_at, label_of, whole_of
from forgather_mem.growth.trend import GROWTH, Trend
from forgather_mem.system.headroom import host_rooms


def leak(per_step: float, since_step: int) -> Trend:
    return Trend(kind="leak", steps=100, per_step=per_step, low=per_step, high=per_step, since_step=since_step)


def test_what_grows_on_the_host_adds_up_and_arenas_of_python_count_once() -> None:
    whole = whole_of({name: leak(1e5, step) for step, name in enumerate(("native", "workers", "mapped", "objects"), 3)})
    assert (whole.per_step, whole.since_step) == (3e5, 3)


def test_what_grows_on_a_device_counts_alone() -> None:
    assert whole_of({"native": leak(1e5, 3), "device": leak(2e5, 4)}).per_step == 2e5


def test_sizes_have_names_for_people_and_floors() -> None:
    growing = leak(1e5, 1)
    assert label_of({"shared": growing}) == "shared memory (/dev/shm)"
    assert label_of({"workers": growing}) == "the data workers' memory"
    assert label_of({"shared": growing, "native": growing}) == "host memory"
    assert floor_of("mapped") > floor_of("native") == GROWTH.floor_bytes


def test_memory_is_full_when_what_is_left_is_used_up() -> None:
    left_bytes = host_rooms()[0].lasting_bytes
    step = full_at(100, left_bytes / 50, on_device=False)
    assert abs(step - 150) <= 10
    assert full_at(100, 0.0, on_device=False) is None
