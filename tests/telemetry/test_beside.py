"""Values beside objects of others: nothing of Python runs when these die, so that no signal is lost there."""

import gc
import operator
import signal
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
import torch

from forgather_mem.actions import freeze
from forgather_mem.callbacks.trainer.link import LINKS, Link
from forgather_mem.engine.run import Run
from forgather_mem.engine.run_of import RUNS, run_of
from forgather_mem.engine.summary import RunFacts
from forgather_mem.loops.observed import LOOPS, ObservedLoop
from forgather_mem.loops.rounds import OptimizerRounds
from forgather_mem.system.usage import UsageWindow
from forgather_mem.telemetry.beside import Beside


class Model:
    """Somebody's object; as a key it would be taken for any other, if it could be one."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class Preempted(Exception):
    """What the user's handler raises."""


@pytest.fixture(autouse=True)
def none_of_others(collector_of_its_own: None) -> None:
    """A function of Python in the collector, as Hypothesis has one, loses what a handler raises."""


def test_each_object_has_a_value_of_its_own_while_it_lives() -> None:
    first, second = Model(), Model()
    sizes = Beside[int]()
    sizes[first], sizes[second] = 1, 2
    assert (sizes.get(first), sizes.get(second), sizes.get(Model())) == (1, 2, None)
    assert [id(one) for one in sizes] == [id(first), id(second)]
    sizes[second] = 3
    del first
    assert (len(sizes), sizes.get(second), second in sizes) == (1, 3, True)
    sizes.discard(second)
    sizes.discard(second)
    assert not sizes


def test_what_can_not_be_held_weakly_is_refused() -> None:
    with pytest.raises(TypeError):
        Beside[int]()[[]] = 1


def state_of_a_run() -> object:
    state = Model()
    RUNS.give(state, Run(RunFacts()))
    assert run_of(state) is not None
    return state


def trainer_with_a_link() -> object:
    trainer = Model()
    LINKS[trainer] = Link(trainer)
    return trainer


def user_of_a_link(link: Link = Link(Model())) -> object:  # noqa: B008  # it outlives its user
    user = Model()
    link.users[user] = True
    return user


def optimizer_of_a_loop(rounds: OptimizerRounds = OptimizerRounds(())) -> object:  # noqa: B008
    optimizer = torch.optim.SGD([torch.zeros(1)])
    assert rounds.ends_with(optimizer) == 1
    return optimizer


def hold_of_the_heap() -> object:
    hold = freeze.HeapHold(freeze=False)
    freeze._holding[hold] = True
    return hold


def observed_loop() -> object:
    loop = ObservedLoop(None, list)
    LOOPS.add(loop)
    return loop


@pytest.mark.parametrize(
    "make",
    [
        state_of_a_run, trainer_with_a_link, user_of_a_link, optimizer_of_a_loop, hold_of_the_heap, observed_loop,
        UsageWindow,
    ],
)  # fmt: skip
def test_a_handler_that_is_pending_when_something_of_ours_dies_is_not_lost(make: Callable[[], object]) -> None:
    """All in between is of C, so that the handler is pending: it runs in the first function of Python that begins."""

    def handler(*given: object) -> None:
        raise Preempted

    objects = [make()]
    sends, waits = partial(signal.setitimer, signal.ITIMER_REAL, 1e-6), partial(sum, range(1_000_000))
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Preempted):
            deque(map(operator.call, [sends, waits, objects.clear, gc.collect]), maxlen=0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not objects
