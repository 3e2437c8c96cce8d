"""How many batches of a loop are planned, with real optimizers."""

from collections.abc import Iterator

import torch

from forgather_mem.planning.loop.rounds import Rounds
from forgather_mem.planning.storage_log import StorageLog


def parameters() -> Iterator[torch.nn.Parameter]:
    yield torch.nn.Parameter(torch.ones(3), requires_grad=True)


def steps(optimizer: torch.optim.Optimizer, rounds: Rounds) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (optimizer.param_groups[0]["params"][0] ** 4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    rounds.stepped(optimizer)


def test_one_that_steps_at_each_batch_needs_two() -> None:
    optimizer = torch.optim.AdamW(parameters())
    rounds, seen = Rounds(StorageLog(), [optimizer]), []
    while rounds.go_on():
        seen.append(rounds.step)
        steps(optimizer, rounds)
    assert (seen, rounds.notes()) == ([1, 2], [])


def test_all_have_to_step_and_once_again() -> None:
    often, rarely = torch.optim.Adam(parameters()), torch.optim.SGD(parameters())
    rounds, seen = Rounds(StorageLog(), [often, rarely]), []
    while rounds.go_on():
        seen.append(rounds.step)
        steps(often, rounds)
        if len(seen) % 5 == 0:
            steps(rarely, rounds)
    assert seen == [1] * 5 + [2] * 5


def test_a_history_fills() -> None:
    optimizer = torch.optim.LBFGS(parameters(), lr=0.01, max_iter=3, history_size=8)
    rounds, batches = Rounds(StorageLog(), [optimizer]), 0
    while rounds.go_on():
        batches += 1
        steps(optimizer, rounds)
    full = len(optimizer.state[optimizer.param_groups[0]["params"][0]]["old_dirs"])
    assert full == 8
    assert 3 < batches < 8
