"""The stack of phases: what is open, who hears of it, and what becomes of a watcher that fails."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.engine.phases import PhaseStack
from forgather_mem.telemetry.events import PHASE_NUMBER, PHASES, STEP_PHASES


class Watcher:
    """Notes what it hears."""

    def __init__(self, *, wants_begin: bool = True, wants_end: bool = True) -> None:
        self.wants_begin, self.wants_end = wants_begin, wants_end
        self.heard: list[str] = []

    def phase_begin(self, phase: str) -> None:
        self.heard.append(f"+{phase}")

    def phase_end(self, phase: str) -> None:
        self.heard.append(f"-{phase}")


def test_the_first_phase_of_a_step_ends_the_startup() -> None:
    phases, watcher = PhaseStack(), Watcher()
    phases.watch(watcher)
    phases.enter("startup")
    assert phases.in_step is None, "nobody has told of a step yet"
    phases.enter("data")
    assert phases.in_step
    assert watcher.heard == ["+startup", "-startup", "+data"]


def test_a_data_phase_without_a_batch_is_in_no_step() -> None:
    phases = PhaseStack()
    phases.enter("data")
    phases.leave("data")
    phases.no_step()
    assert phases.in_step is False
    phases.enter("data")
    assert phases.in_step


def test_who_comes_late_hears_of_the_phases_that_are_open() -> None:
    phases, watcher = PhaseStack(), Watcher()
    phases.enter("data")
    phases.enter("forward")
    phases.watch(watcher)
    phases.leave("data")
    assert watcher.heard == ["+data", "+forward", "-forward", "-data"]


def test_a_watcher_may_spare_itself_the_phases_of_a_step_but_hears_of_the_rare_ones() -> None:
    phases = PhaseStack()
    deaf, half = Watcher(wants_begin=False), Watcher(wants_end=False)
    for watcher in (deaf, half):
        phases.watch(watcher)
    for phase in ("forward", "save"):
        phases.enter(phase)
        phases.leave(phase)
    assert deaf.heard == ["+save", "-save"]
    assert half.heard == ["+forward", "+save", "-save"]


def test_the_phase_that_failed_first_is_remembered_until_another_begins() -> None:
    phases = PhaseStack()
    phases.enter("data")
    phases.enter("forward")
    phases.fail()
    phases.leave("forward")
    phases.fail()  # the error passes the outer one, too
    assert phases.failed == "forward"
    phases.enter("optimizer")
    assert phases.failed is None


def test_the_end_of_a_run_ends_all_phases_and_forgets_who_watched() -> None:
    phases, watcher = PhaseStack(), Watcher()
    phases.watch(watcher)
    phases.enter("data")
    phases.close()
    phases.enter("save")
    assert watcher.heard == ["+data", "-data"]
    assert phases.current == "save"


_turns = st.lists(
    st.tuples(st.sampled_from(sorted(STEP_PHASES)), st.sampled_from(["", "save", "evaluate"])), max_size=30
)


@given(_turns)
def test_a_turn_is_the_same_whether_anybody_hears_of_it(turns: list[tuple[str, str]]) -> None:
    silent, heard, watcher = PhaseStack(), PhaseStack(), Watcher()
    heard.watch(watcher)
    for phase, rare in turns:
        for phases in (silent, heard):
            phases.turn(phase, sorted(STEP_PHASES))
            if rare:
                phases.enter(rare)
        assert silent.current == heard.current
        assert silent.in_step == heard.in_step
        for phases in (silent, heard):
            if rare:
                phases.leave(rare)
    heard.close()
    assert watcher.heard.count("+forward") == watcher.heard.count("-forward")


def test_where_a_phase_is_only_stored_its_number_is() -> None:
    class Keeps(Watcher):
        beside = SimpleNamespace(phase=0)
        steps: ClassVar[list[int]] = []

        def step_ended(self, step: int) -> None:
            self.steps.append(step)

    phases, keeps = PhaseStack(), Keeps(wants_begin=False)
    phases.watch(keeps)
    for phase in ("data", "forward"):
        phases.enter(phase)
        assert keeps.beside.phase == PHASE_NUMBER[phase]
    phases.turn("backward", ("forward",))
    assert (keeps.beside.phase, keeps.heard) == (PHASE_NUMBER["backward"], [])
    phases.step_ended(7)
    assert (keeps.steps, phases.in_step) == ([7], False)
    phases.forget()
    phases.enter("optimizer")
    assert keeps.beside.phase == PHASE_NUMBER["backward"], "in a forked child it is the parent's"


_moves = st.lists(st.tuples(st.booleans(), st.sampled_from(sorted(set(PHASES) - {"other"}))), max_size=40)


@given(_moves)
def test_whatever_is_begun_and_ended_begins_and_ends_come_in_pairs(moves: list[tuple[bool, str]]) -> None:
    phases, watcher = PhaseStack(), Watcher()
    phases.watch(watcher)
    for begins, phase in moves:
        phases.enter(phase) if begins else phases.leave(phase)
    phases.close()
    open_now: list[str] = []
    for word in _pairs(watcher.heard, open_now):
        assert word in STEP_PHASES or word in PHASES
    assert open_now == []


def _pairs(heard: list[str], open_now: list[str]) -> Iterator[str]:
    """Each phase that has ended; the innermost ends first."""
    for word in heard:
        if word[0] == "+":
            open_now.append(word[1:])
        else:
            assert open_now.pop() == word[1:]
            yield word[1:]
