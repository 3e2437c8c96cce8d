"""What a leak grows with: each step, or what comes now and then. Real phases of a small run, made-up sizes."""

import pytest

from forgather_mem.diagnose.leaks.watch import RarePhases
from forgather_mem.engine.run import Run, RunFacts
from forgather_mem.telemetry.report import LeakReport

LEAK = LeakReport(verdict="leak", bytes_per_step=100.0, since_step=1)


@pytest.mark.parametrize("wide", [3, 12])  # later on there are fewer readings, with an evaluation between any two
@pytest.mark.parametrize(
    ("kept", "kinds", "told"),
    [
        ({"evaluate": 1000.0}, {"evaluate": 10}, ("an evaluation", 10.0, 10)),
        ({"save": 1000.0}, {"evaluate": 15, "save": 10}, ("a save", 10.0, 10)),
        ({"step": 100.0}, {"evaluate": 10}, ("a step", 1.0, 1)),
        ({"step": 50.0, "evaluate": 500.0}, {"evaluate": 10}, ("a step", 1.0, 1)),
        ({"evaluate": 1000.0}, {"evaluate": 10, "save": 10}, ("a step", 1.0, 1)),  # which of the two is not known
    ],
)
def test_the_unit_is_the_only_phase_with_which_it_grows(
    kept: dict[str, float], kinds: dict[str, int], told: tuple[str, float, int], wide: int
) -> None:
    run = Run(RunFacts())
    rare = RarePhases(run)
    run.watch_phases(rare)
    run.enter_phase("startup")
    run.leave_phase("startup")
    assert not rare.gained, "it lies between no two steps"
    native = 1e6
    for step in range(1, 301):
        run.step = step
        native += kept.get("step", 0.0)
        for phase, every in kinds.items():
            if not step % every:
                run.enter_phase(phase)
                native += kept.get(phase, 0.0)
                run.leave_phase(phase)
        if step % (3 if step <= 60 else wide) == 0:
            rare.read(step, {"native": native})
    leak = rare.told(LEAK)
    assert (leak.per, leak.per_steps, leak.since_step) == told
    assert rare.rest(308) == (0 if told[1] == 1 else 8)
    assert rare.told(LeakReport(since_step=28)).since_step == (28 if told[1] == 1 else 20)  # the last one before it
