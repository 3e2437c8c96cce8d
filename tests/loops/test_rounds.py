"""What counts as one step of a training with one optimizer or several."""

import gc
from collections.abc import Sequence

import pytest
import torch

from forgather_mem.loops.rounds import OptimizerRounds


def optimizers(number: int) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([torch.zeros(1)]) for _ in range(number)]


def num_steps(known: Sequence[int], calls: Sequence[int]) -> int:
    """The steps that these calls come to, each the number of an optimizer; `known` are there from the start."""
    all_of_them = optimizers(3)
    rounds = OptimizerRounds(all_of_them[number] for number in known)
    return sum(rounds.ends_with(all_of_them[number]) for number in calls)


@pytest.mark.parametrize(
    ("known", "calls", "expected"),
    [
        ([0], [0] * 7, 7),
        ([0, 1], [0, 1] * 20, 20),
        ([0, 1, 2], [0, 1, 2] * 5, 5),
        ([0, 1], ([0] * 5 + [1]) * 20, 20),  # a critic that trains more often
        ([0, 1], [0] * 25, 25),  # the other is never used
        ([0, 1], [0, 1] * 10 + [0] * 100, 110),  # the other is not used any more
        ([0], [0] + [0, 1] * 20, 21),  # the other is made later
        ([0], [0] * 5 + [1] * 40, 45),  # the other takes its place
    ],
    ids=[
        "one",
        "two",
        "three",
        "five to one",
        "one is unused",
        "one is dropped",
        "one comes later",
        "one after the other",
    ],
)
def test_a_step_is_a_round_of_all_that_step(known: list[int], calls: list[int], expected: int) -> None:
    assert num_steps(known, calls) == expected


def test_another_may_begin_a_training_after_enough_steps_of_the_same() -> None:
    one, other, following = optimizers(3)
    rounds = OptimizerRounds([one])
    for _ in range(5):
        rounds.ends_with(one)
        assert not rounds.may_be_over(following, 5)
    assert (rounds.may_be_over(one, 4), rounds.may_be_over(following, 4)) == (False, True)
    for _ in range(40):
        rounds.ends_with(other)
    assert not rounds.may_be_over(following, 40), "those of another one don't count"
    del one, other
    assert (rounds.may_be_over(following, 10), rounds.optimizers) == (True, [])


@pytest.mark.parametrize(
    ("known", "calls", "expected"),
    [([0, 1], [0] * 8, 8), ([0, 1], [0, 1, 0], 0), ([0], [0] * 3, 0), ([0, 1], [], 0)],
    ids=["the other has never stepped", "in the middle of a round", "nothing withheld", "nothing at all"],
)
def test_at_the_end_what_was_withheld_counts(known: list[int], calls: list[int], expected: int) -> None:
    all_of_them = optimizers(2)
    rounds = OptimizerRounds(all_of_them[number] for number in known)
    for number in calls:
        rounds.ends_with(all_of_them[number])
    assert (rounds.end(), rounds.in_round) == (expected, len(calls) == 3 and len(known) == 2)


def test_others_that_are_made_for_a_few_steps_and_kept_are_not_waited_for() -> None:
    trained, *probes = optimizers(21)
    rounds = OptimizerRounds([trained])
    calls = [one for probe in probes for one in [trained] * 3 + [probe] * 4]
    assert sum(rounds.ends_with(one) for one in calls) == 60


def test_one_that_steps_much_less_often_is_waited_for_once_that_is_known() -> None:
    calls = [0] * 50 + [1]
    assert num_steps([0, 1], calls * 21) - num_steps([0, 1], calls * 20) == 1


def test_optimizers_are_not_kept_alive_and_a_dead_one_is_not_waited_for() -> None:
    first, second = optimizers(2)
    rounds = OptimizerRounds([first, second])
    assert (rounds.ends_with(first), rounds.in_round, rounds.ends_with(second)) == (0, True, 1)
    del second
    gc.collect()
    assert (rounds.ends_with(first), rounds.optimizers) == (1, [first])
