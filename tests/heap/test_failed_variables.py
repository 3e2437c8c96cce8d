"""What a failed function of the user's holds is told with its name, line and size; what belongs to the model is not."""

# ruff: noqa: F841 (variables that hold something are what is tested)

import inspect
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from forgather_mem.heap.failed_variables import HeldVariable, held_variables
from forgather_mem.units import MIB


def numbers(mib: int) -> torch.Tensor:
    return torch.zeros(mib * MIB // 4)


def frames(work: Callable[[], object]) -> list[FrameType]:
    """Of this file, outermost first."""
    with pytest.raises(MemoryError) as caught:
        work()
    return [entry.frame for entry in inspect.getinnerframes(caught.tb) if entry.function not in ("frames", "<module>")]


def found(held: list[HeldVariable]) -> dict[str, tuple[int, bool]]:
    return {one.name: (one.num_bytes // MIB, one.collects) for one in held}


def test_tensors_and_arrays_are_told_with_the_line_that_made_them() -> None:
    def load() -> None:
        table = np.zeros(MIB // 8)
        checkpoint = {"model": {"weight": numbers(3)}, "step": 2, "states": [numbers(1), (numbers(1),)]}
        view = checkpoint["model"]["weight"][:10]  # type: ignore[index]  # counts once
        raise MemoryError

    begin = inspect.getsourcelines(load)[1]
    held = held_variables(frames(load))
    assert found(held) == {"`checkpoint` of load()": (5, True), "`table` of load()": (1, False)}
    assert held[0].line == f"test_failed_variables.py:{begin + 2}"


class Imports(dict[str, Any]):
    def values(self) -> Any:
        raise ImportError


def test_a_dictionary_of_a_class_of_its_own_is_read_without_its_code() -> None:
    def load() -> None:
        states = Imports(weight=numbers(3))
        raise MemoryError

    assert found(held_variables(frames(load))) == {"`states` of load()": (3, False)}


def test_what_the_model_and_its_optimizer_have_is_theirs() -> None:
    model = torch.nn.Linear(1024, 1024)
    model(torch.ones(1, 1024)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()

    def goes_on() -> None:
        weights, gradients = dict(model.named_parameters()), [part.grad for part in model.parameters()]
        states = list(optimizer.state.values())
        raise MemoryError

    assert held_variables(frames(goes_on), model, optimizer) == []
    assert sum(one.num_bytes for one in held_variables(frames(goes_on))) > 15 * MIB


class KeepsCopies:
    def __init__(self) -> None:
        self.copies: deque[tuple[torch.nn.Module, None]] = deque()

    def on_save(self) -> None:
        self.copies.append((torch.nn.Linear(1024, 512), None))
        raise MemoryError


def test_what_an_object_keeps_in_its_attributes_is_told() -> None:
    keeper = KeepsCopies()
    assert found(held_variables(frames(keeper.on_save))) == {"`KeepsCopies.copies`": (2, True)}
    assert found(held_variables([], others=[keeper, None])) == {"`KeepsCopies.copies`": (2, True)}


def test_a_container_that_holds_itself_ends() -> None:
    def goes_round() -> None:
        around: list[object] = [numbers(1)]
        around.append(around)
        raise MemoryError

    assert found(held_variables(frames(goes_round))) == {"`around` of goes_round()": (1, True)}


def test_what_a_library_hands_over_is_the_librarys() -> None:
    def of_each(batch: torch.Tensor) -> None:
        own = numbers(2)
        raise MemoryError

    held = held_variables(frames(lambda: tree_map(of_each, [numbers(3)])))
    assert found(held) == {"`own` of of_each()": (2, False)}


class Metric(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = [torch.zeros(1000)]
        self.last = torch.zeros(1000)


def test_what_a_module_inside_of_the_model_collects_is_told() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Metric())
    assert [(held.name, held.num_bytes) for held in held_variables([], model)] == [("`Metric.scores`", 4000)]


class Cached(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.decoded: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.decoded.append(torch.zeros(1000))
        return self.decoded[-1]


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    raise MemoryError


def test_what_a_dataset_keeps_is_told_also_where_its_rows_are_put_together() -> None:
    with pytest.raises(MemoryError) as error:
        next(iter(torch.utils.data.DataLoader(Cached(), batch_size=4, collate_fn=collate)))
    frames = [frame for frame, _ in traceback.walk_tb(error.tb)]
    found = {held.name: held.num_bytes for held in held_variables(frames)}
    assert found["`Cached.decoded`"] == 16_000


class Seen(NamedTuple):
    state: torch.Tensor
    reward: float


class Memory:
    def __init__(self) -> None:
        self.kept = [Seen(numbers(1), 0.5) for _ in range(3)]


def test_what_an_object_of_the_users_own_collects_is_told_with_its_attribute() -> None:
    def optimize(memory: Memory) -> None:
        raise MemoryError

    assert found(held_variables(frames(lambda: optimize(Memory())))) == {"`Memory.kept`": (3, True)}
