"""What says that a holder will stop growing, told of real holders."""

import queue
from typing import Any

import pytest
import torch

from forgather_mem.diagnose.leaks.holder_kinds import Held
from forgather_mem.diagnose.leaks.holder_lines import bound_of_holder
from forgather_mem.diagnose.leaks.snapshot import GrownObject
from tests.heap.test_reachable import Holder, suspects_after

pytestmark = pytest.mark.alone(forked=True)  # each looks through the heap, of which all tests have more


def test_a_queue_with_a_size_is_limited() -> None:
    holder: Any = Holder()
    holder.outbox = queue.Queue(maxsize=300)
    (top, *_) = suspects_after(lambda step: holder.outbox.put(bytes(5_000 + step)))
    assert top.bounded == "Holder.outbox.queue holds 300 at most"


class Ring:
    places: list[torch.Tensor] = []  # noqa: RUF012  # of one test

    def push(self, step: int) -> None:
        self.places.append(torch.zeros(5_000 + step))
        self.places[step // 2] = torch.zeros(5_000)


def test_a_list_whose_places_are_assigned_by_index_may_be_one_that_is_not_full_yet() -> None:
    (top, *_) = suspects_after(Ring().push)
    assert "Ring.places may be a ring buffer that is not full yet" in (top.bounded or "")
    holder: Any = Holder()
    for holder.made in ([None] * 40, [None] * 4_000):
        (top, *_) = suspects_after(lambda step: holder.made.__setitem__(7 * step % 40, torch.zeros(5_000)))
        assert top.bounded == f"Holder.made holds {len(holder.made):,} at most"


class Clips:
    """A data set that keeps what it has decoded."""

    def __init__(self, by_name: bool) -> None:
        self.by_name = by_name
        self.decoded: dict[object, bytes] = {}

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> bytes:
        return self.decoded.setdefault(str(index) if self.by_name else index, bytes(5_000 + index))


DECODED: dict[int, bytes] = {}


class SharedClips(Clips):
    shared: dict[int, bytes] = {}  # noqa: RUF012  # of one test

    def __getitem__(self, index: int) -> bytes:
        if self.by_name:
            return DECODED.setdefault(index, bytes(5_000 + index))
        return self.shared.setdefault(index, bytes(5_000 + index))


def test_what_keeps_one_entry_a_row_is_limited_by_their_number() -> None:
    clips = Clips(by_name=False)
    (top, *_) = suspects_after(lambda step: clips[step])
    assert top.bounded == "Clips.decoded holds one entry for each of 4,000 rows at most"
    assert 4_000 * 5_000 < (top.full_bytes or 0) < 4_000 * 5_300
    for shared, kept in ((SharedClips(False), "SharedClips.shared"), (SharedClips(True), f"{__name__}.DECODED")):
        (top, *_) = suspects_after(lambda step, clips=shared: clips[step])
        assert top.bounded == f"{kept} holds one entry for each of 4,000 rows at most"
    clips = Clips(by_name=True)
    (top, *_) = suspects_after(lambda step: clips[step])
    assert (top.held_by, top.bounded) == ("Clips.decoded", None)


@pytest.mark.parametrize("num", [30, 11])
def test_the_state_of_an_optimizer_is_limited_by_its_parameters_also_once_it_is_full(num: int) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(num)]
    adam = torch.optim.Adam(parameters)
    adam.state[parameters[-1]] = {}
    (top, *_) = suspects_after(lambda step: adam.state.update({parameters[step]: {"moment": torch.zeros(5000)}}))
    assert top.bounded == f"Adam.state holds one entry for each of {num} parameters at most"


def test_a_parameter_has_no_rows_that_limit_its_hooks() -> None:
    weight = torch.nn.Parameter(torch.zeros(4_000))
    handles = [weight.register_hook(print) for _ in range(100)]
    hooks = weight._backward_hooks
    assert len(handles) == len(hooks) == 100
    grown = GrownObject(kind="items", position=0, count=100, count_per_step=1.0, each_bytes=5e3, samples=[])
    assert bound_of_holder(Held(grown, hooks, "Parameter._backward_hooks", weight), [], [weight]) is None
