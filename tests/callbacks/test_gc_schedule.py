import pytest

from forgather_mem.callbacks.gc_schedule import LIMITS, Budget, Schedule

FIRST = Schedule(stretch=1, gap_steps=0, own_boundary_steps=1000)


class Training:
    """Steps of a given length, and collections of a given cost; what the budget advises is done at once."""

    def __init__(
        self, step_s: float, every_steps: int = 10, boundary_steps: int = 1000, boundary_s: float = 900
    ) -> None:
        self.now_s = 0.0
        self.step = 0
        self.step_s = step_s
        self.every_steps = every_steps
        self.schedule = FIRST
        self.budget = Budget(every_steps, boundary_steps, boundary_s, clock=lambda: self.now_s)

    def go(self, steps: int) -> None:
        self.step += steps
        self.now_s += steps * self.step_s

    def collect(self, cost_s: float, found: float = 0.0, froze: bool = False) -> None:
        self.go(self.every_steps * self.schedule.stretch)
        self.budget.begins(self.step)
        self.now_s += cost_s
        self.budget.collected(self.step, cost_s, found, froze=froze)
        self.schedule = self.budget.advice(self.schedule, self.step)

    def boundary(self, cost_s: float) -> None:
        self.budget.begins(self.step)
        self.now_s += cost_s
        self.budget.renewed(self.step, cost_s)
        self.schedule = self.budget.advice(self.schedule, self.step)


def test_a_cheap_collector_keeps_its_schedule() -> None:
    training = Training(step_s=0.1)
    training.boundary(0.2)
    for _ in range(20):
        training.collect(0.0002)
    assert training.schedule.stretch == 1


@pytest.mark.parametrize("cost_s", [0.02, 0.2, 20.0])
def test_collections_that_find_nothing_are_stretched_to_half_a_per_cent_of_the_time(cost_s: float) -> None:
    training = Training(step_s=0.1)
    for _ in range(20):
        training.collect(cost_s)
    share = cost_s / (10 * training.schedule.stretch * 0.1)
    assert share <= 0.005 or training.schedule.stretch == LIMITS.most_stretch
    assert training.schedule.stretch == {0.02: 4, 0.2: 64, 20.0: 64}[cost_s]


def test_collections_that_find_garbage_may_take_ten_times_as_much() -> None:
    training = Training(step_s=0.1)
    for _ in range(20):
        training.collect(0.02, found=100)
    assert training.schedule.stretch == 1
    for _ in range(20):
        training.collect(0.2, found=100)
    assert training.schedule.stretch == 4


def test_one_slow_collection_changes_nothing_and_cheaper_ones_bring_the_schedule_back() -> None:
    training = Training(step_s=0.1)
    for cost_s in (0.001, 0.001, 5.0, 0.001, 0.001):
        training.collect(cost_s)
        assert training.schedule.stretch == 1
    for cost_s in (0.02,) * 6:
        training.collect(cost_s)
    assert training.schedule.stretch == 4
    for _ in range(6):
        training.collect(0.0001)
    assert training.schedule.stretch == 1


def test_boundaries_keep_a_distance_that_makes_them_5_per_cent_of_the_time() -> None:
    training = Training(step_s=0.1)
    training.go(10)
    training.boundary(2.0)
    assert training.schedule.gap_steps == 0, "no step has been timed yet, but those that load and compile"
    training.collect(0.0002)
    assert training.schedule.gap_steps == 400  # 40 s, of which 2 s are 5 %
    training.boundary(2.1)
    assert training.schedule.gap_steps == 400


def test_an_evaluation_between_two_collections_does_not_make_steps_look_long() -> None:
    training = Training(step_s=0.1)
    training.boundary(2.0)
    for number in range(12):
        if number % 3 == 1:
            training.now_s += 60.0
        training.collect(0.0002)
    assert training.schedule.gap_steps == 400


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 1000), (1.8, 500), (3600.0, 1)])
def test_our_own_boundary_comes_after_1000_steps_or_15_minutes(step_s: float, steps: int) -> None:
    training = Training(step_s=step_s)
    for _ in range(3):
        training.collect(0.0002)
    assert training.schedule.own_boundary_steps == steps


def test_after_some_freezes_between_boundaries_the_next_boundary_comes_at_once_and_then_as_before() -> None:
    training = Training(step_s=0.1)
    training.boundary(0.2)
    for _ in range(LIMITS.most_freezes):
        assert training.schedule.own_boundary_steps == 1000
        training.collect(0.006, found=1, froze=True)
    assert training.schedule.own_boundary_steps == training.step
    training.boundary(0.2)
    training.collect(0.0002)
    assert training.schedule.own_boundary_steps == 1000


def test_a_schedule_is_one_line_of_text() -> None:
    assert Schedule.read(FIRST.write()) == FIRST


def test_boundaries_by_steps_only() -> None:
    training = Training(step_s=0.1, boundary_s=float("inf"))
    training.collect(0.0002)
    training.collect(0.0002)
    assert training.schedule.own_boundary_steps == 1000
