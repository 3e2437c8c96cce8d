"""What a failed script holds is told by its owner, with real models and graphs; what belongs to the training is not."""

# ruff: noqa: F841 (variables that hold something are what is tested)

import copy
import io
import sys
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint as checkpointed

from forgather_mem.heap.census import Holding, take_census
from forgather_mem.units import MIB

pytestmark = pytest.mark.alone(forked=True)
KEPT: dict[str, Any] = {}


def numbers(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


def entries(work: Callable[[], object]) -> list[TracebackType]:
    """Those of the traceback from `work` on."""
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        work()
    found, part = [], caught.tb.tb_next
    while part is not None:
        found.append(part)
        part = part.tb_next
    return found


def census(work: Callable[[], object], *arguments: Any) -> dict[str, Holding]:
    """By what it is called, what holds a MiB or more."""
    return {held.part: held for held in take_census(entries(work), *arguments) if held.num_bytes >= MIB}


def sizes(found: dict[str, Holding]) -> dict[str, int]:
    return {name: round(held.num_bytes / MIB) for name, held in found.items()}


def test_tensors_and_arrays_are_told_with_the_variable_that_holds_them() -> None:
    def load() -> None:
        table = np.zeros(2 * MIB // 8)
        states = {"model": {"weight": numbers(3)}, "step": 2, "states": [numbers(1), (numbers(1),)]}
        view = states["model"]["weight"][:10]  # type: ignore[index]  # counts once
        raw, file = b"0" * 4 * MIB, io.BytesIO()
        file.write(bytes(6 * MIB))
        texts, raw_numbers = ["1" * MIB, "2" * MIB], array("b", bytes(3 * MIB))
        around: list[object] = [numbers(1)]
        around.append(around)
        raise MemoryError

    found = census(load)
    assert sizes(found) == {
        "`states` of load()": 5, "`table` of load()": 2, "`file` of load()": 6, "`texts` of load()": 2,
        "`raw_numbers` of load()": 3, "`around` of load()": 1,
    }  # fmt: skip
    collects = {name.split("`")[1] for name, held in found.items() if held.collects}
    assert collects == {"states", "texts", "around"}


def model_of(width: int = 512) -> torch.nn.Sequential:
    """A model of one MiB for 512."""
    return torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Tanh())


def trained() -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_what_the_model_and_its_optimizer_have_is_theirs_and_a_copy_is_a_copy() -> None:
    model, optimizer = trained()

    def goes_on() -> None:
        weights, gradients = dict(model.named_parameters()), [part.grad for part in model.parameters()]
        states = list(optimizer.state.values())
        average = {name: value.clone() for name, value in model.state_dict().items()}
        raise MemoryError

    assert sizes(census(goes_on, model, optimizer)) == {"a copy of the model, `average` of goes_on()": 1}

    def saves() -> None:
        both = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        averages = [copy.deepcopy(model) for _ in range(3)]
        mixed = [numbers(3), model[0].weight.detach().clone()]
        raise MemoryError

    assert sizes(census(saves, model, optimizer)) == {
        "a copy of the model and the optimizer's state, `both` of saves()": 3,
        "as much as 3 copies of the model, `averages` of saves()": 3,
        "`mixed` of saves()": 4,
    }


def test_models_and_optimizers_of_earlier_folds_are_what_the_list_keeps() -> None:
    model, optimizer = trained()

    def fold() -> None:
        folds = [dict(zip(("model", "optimizer"), trained(), strict=True)) for _ in range(2)]
        raise MemoryError

    part = "as much as 3 copies of the model and the optimizer's state, `folds` of fold()"
    assert sizes(census(fold, model, optimizer)) == {part: 8}  # weights, gradients, two states of each


def test_the_batch_is_what_the_model_was_called_with_or_what_a_library_hands_over() -> None:
    class Full(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise MemoryError

    def step() -> None:
        batch = {"x": numbers(3)}
        Full()(**batch)

    def of_each(batch: torch.Tensor) -> None:
        own = numbers(2)
        raise MemoryError

    assert sizes(census(step)) == {"the batch": 3}
    assert sizes(census(lambda: tree_map(of_each, [numbers(3)]))) == {"the batch": 3, "`own` of of_each()": 2}


def number() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def test_what_a_graph_keeps_is_told_by_its_pass_and_the_variable_that_keeps_it() -> None:
    model, optimizer = trained()
    passes: list[int] = []

    def accumulates() -> None:
        total = 0.0
        for _ in range(3):
            passes.append(number())
            total = total + model(torch.ones(512, 512)).square().mean()
        passes.append(number())
        out = model(torch.ones(1024, 512))
        raise MemoryError

    found = census(accumulates, model, optimizer, passes)
    # Its input and the result of tanh are kept: twice 512 x 512 numbers in each pass, and the square's
    assert sizes(found) == {"graphs of 3 earlier passes in `total` of accumulates()": 6, "activations": 4}
    assert found["graphs of 3 earlier passes in `total` of accumulates()"].num_passes == 3


def test_a_graph_that_leads_to_no_trained_parameter_is_its_models() -> None:
    model, optimizer = trained()
    teacher = model_of().eval()

    def distils() -> None:
        x = torch.ones(512, 512)
        gap = (model(x) - teacher(x)).square().mean()
        raise MemoryError

    found = census(distils, model, optimizer)
    (graph,) = [held for held in found.values() if held.kind == "untrained"]
    assert graph.name.startswith("`teacher` of ")
    assert graph.num_bytes == MIB, "the input is the student's, too"

    def goes_through_it() -> None:
        gap = teacher(model(torch.ones(512, 512))).square().mean()
        raise MemoryError

    assert not [held for held in census(goes_through_it, model, optimizer).values() if held.kind == "untrained"]


def test_a_part_of_the_model_that_no_optimizer_has_is_untrained_and_its_gradients_are_told_also_those_to_come() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(model_of(), model_of()), model_of())
    optimizer = torch.optim.SGD(model[1].parameters())

    def frozen() -> None:
        features = model[0](torch.ones(512, 512))
        raise MemoryError

    found = census(frozen, model, optimizer)
    assert [held.name for held in found.values() if held.kind == "untrained"] == ["`Sequential.0`"]
    assert not [held for held in found.values() if held.kind == "vain"]
    model(torch.ones(1, 512)).sum().backward()
    model[0][0][0].weight.grad = None  # of the other it is there
    assert census(frozen, model, optimizer)["gradients that no optimizer takes, of `Sequential.0`"].num_bytes == 2 * MIB


def test_a_graph_that_was_gone_through_keeps_nothing_and_a_checkpointed_one_its_inputs() -> None:
    model, optimizer = trained()

    def done() -> None:
        loss = model(torch.ones(512, 512)).square().mean()
        loss.backward()
        raise MemoryError

    def again() -> None:
        hidden = checkpointed(model, torch.ones(512, 512).exp().requires_grad_(), use_reentrant=False)
        loss = hidden.square().mean()
        del hidden
        raise MemoryError

    assert sizes(census(done, model, optimizer)) == {}
    assert sum(sizes(census(again, model, optimizer)).values()) == 2, "its input and its result"


def test_what_nothing_reads_again_is_unused() -> None:
    def resumes() -> None:
        states = {"weights": numbers(2)}
        used, shared = {"weights": numbers(3)}, [numbers(4)]
        KEPT["shared"] = shared
        rows, operand = [numbers(5)], numbers(6)
        part = rows[:]
        take(states)
        fail(operand)
        take((used, part))

    try:
        found = census(resumes)
    finally:
        KEPT.clear()
    unused = {held.num_bytes // MIB: held.is_unused for held in found.values()}
    assert unused == {size: size == 2 for size in range(2, 7)}


def test_rows_that_are_views_of_one_tensor_count_once() -> None:
    def trains() -> None:
        tokens = numbers(4).view(1024, -1)
        rows = [{"input_ids": row, "labels": row} for row in tokens]
        fail()

    assert sizes(census(trains)) == {"`rows` of trains()": 4}


def take(thing: object) -> None:
    pass


def fail(*of: object) -> None:
    raise MemoryError


class Keeper:
    def __init__(self, items: Sequence[object]) -> None:
        self.copies = deque(items, maxlen=9)

    def on_save(self) -> None:
        raise MemoryError


class Seen(NamedTuple):
    state: torch.Tensor
    reward: float


class Record:
    def __init__(self) -> None:
        self.state = numbers(1)


class Keepers:
    seen: ClassVar[list[object]] = []


@pytest.mark.parametrize("item", [Record, lambda: Seen(numbers(1), 0.5), lambda: (model_of(), None)])
def test_a_collection_goes_by_the_attribute_that_holds_it(item: Callable[[], object]) -> None:
    keeper = Keeper([item() for _ in range(3)])
    (held,) = census(keeper.on_save).values()
    assert (held.name, held.num_bytes // MIB) == ("`Keeper.copies`", 3)
    assert (held.collects, held.num_items) == (True, 3)
    Keepers.seen += keeper.copies
    del keeper
    (held,) = census(Keeper([]).on_save).values()
    Keepers.seen.clear()
    assert (held.name, held.num_items) == ("`Keepers.seen`", 3)


def test_of_a_long_list_some_items_stand_for_the_others() -> None:
    def collects() -> None:
        rows = [{"x": torch.ones(1024)} for _ in range(2000)]
        plain = [torch.ones(1024) for _ in range(2000)]
        tokens = [{"input": list(range(start, start + 100)), "kind": "train"} for start in range(1000, 41000, 10)]
        nested = [[list(range(start, start + 300)) for start in range(1000, 313_000, 800)] for _ in range(30)]
        words, same = {f"word {number}": number for number in range(10_000, 40_000)}, [*range(10)] * 100_000
        raise MemoryError

    found = {held.name.split("`")[1]: held.num_bytes for held in census(collects).values()}
    # 28 and 59 bytes take 32 and 64
    number, row = 32, sys.getsizeof({"input": 0, "kind": 0}) + sys.getsizeof(list(range(100)))
    words = sys.getsizeof(dict.fromkeys(map(str, range(30_000)))) + 30_000 * (64 + number)
    rows, plain = 2000 * (sys.getsizeof({"x": 0}) + 2**12), 2000 * 2**12
    sizes = {"rows": rows, "plain": plain, "tokens": 4000 * (row + 100 * number), "words": words, "same": 8_000_000}
    sizes["nested"] = 30 * 390 * (sys.getsizeof(list(range(300))) + 300 * number)
    assert found == {name: pytest.approx(size, rel=0.03) for name, size in sizes.items()}


class Cached(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.decoded: list[torch.Tensor] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.decoded.append(numbers(1))
        return self.decoded[-1]


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    raise MemoryError


def test_what_a_dataset_keeps_is_told_also_where_its_rows_are_put_together() -> None:
    def reads() -> None:
        next(iter(torch.utils.data.DataLoader(Cached(), batch_size=4, collate_fn=collate)))

    assert sum(sizes(census(reads)).values()) == 4


def test_nothing_is_kept() -> None:
    import gc
    import weakref

    class Batch(torch.Tensor):
        pass

    seen = []

    def step() -> None:
        mine = torch.ones(MIB).as_subclass(Batch)
        seen.append(weakref.ref(mine))
        raise MemoryError

    traced = entries(step)
    assert take_census(traced)
    traceback.clear_frames(traced[0])
    del traced
    gc.collect()
    assert seen[0]() is None


class Distils:
    def __init__(self) -> None:
        self.model, self.optimizer = trained()
        self.teacher = model_of().eval()

    def step(self, join: Callable[..., torch.Tensor]) -> None:
        x = torch.ones(512, 512)
        first, passes = self.model(x), [number()]
        self.passes = passes
        second = self.model(x + 1)
        join(first, second)
        raise MemoryError


def test_the_first_of_two_passes_of_a_step_is_a_part_of_it_and_a_loss_is_not() -> None:
    work = Distils()
    found = census(lambda: work.step(torch.add), work.model, work.optimizer, [0, number()])
    assert sizes(found) == {"activations": 4, "a copy of the model, `Distils.teacher`": 1}
    begun, collected = [0, number()], []
    work.teacher.register_forward_hook(lambda *_: fail())

    def collects() -> None:
        collected.append(work.model(torch.ones(512, 512)))
        begun.append(number())
        loss = work.model(torch.ones(512, 512)).square().mean()
        loss.backward(retain_graph=True)
        begun.append(number())
        work.teacher(torch.ones(1, 512))

    found = census(collects, work.model, work.optimizer, begun)
    assert {(held.kind, held.num_passes) for held in found.values()} >= {("earlier", 1)}
    assert not [held for held in found.values() if held.kind == "activations"]


def test_a_loss_of_two_passes_that_a_third_follows_is_a_part_of_the_step_and_joins_no_sum() -> None:
    model, optimizer = trained()

    def penalises(begins: list[int]) -> None:
        scores = []
        for _ in range(2):
            begins.append(number())
            scores.append(model(torch.ones(512, 512)).mean())
        loss = scores.pop() - scores.pop()
        begins.append(number())
        loss = 2 * (model(torch.ones(512, 512)).square().mean() + loss)
        raise MemoryError

    begins: list[int] = []
    (held,) = take_census(entries(lambda: penalises(begins)), model, optimizer, begins)[:1]
    assert (held.kind, held.name) == ("activations", "")


def test_of_what_no_backward_pass_follows_the_holder_is_told() -> None:
    model, optimizer = trained()

    def searches(begins: list[int]) -> None:
        scores = torch.zeros(512)
        for _ in range(3):
            begins.append(number())
            scores = scores + model(torch.ones(512, 512)).sum(0)
        begins.append(number())
        model(torch.ones(512, 512))
        raise MemoryError

    begins: list[int] = []
    failed = entries(lambda: searches(begins))
    (held,) = take_census(failed, model, optimizer, begins, in_step=False)[:1]
    assert held.part == "graphs of 3 earlier passes in `scores` of searches()"


def test_passes_that_nobody_has_heard_are_told_by_the_losses_that_are_kept() -> None:
    model, optimizer = trained()

    def accumulates() -> None:
        losses = []
        for _ in range(3):
            losses.append(model(torch.ones(512, 512)).square().mean())
        model(torch.ones(512, 512))
        raise MemoryError

    found = census(accumulates, model, optimizer)
    assert "graphs of 3 earlier passes in `losses` of accumulates()" in {held.part for held in found.values()}


def test_what_a_result_has_itself_is_its_holders_and_no_graph_that_detach_would_free() -> None:
    model, optimizer = trained()
    passes: list[int] = []

    def collects() -> None:
        shares = []
        for _ in range(3):
            passes.append(number())
            out = model(torch.ones(1024, 512))
            shares.append(out.softmax(-1))
            out.mean().backward()
        passes.append(number())
        raise MemoryError

    found = sizes(census(collects, model, optimizer, passes))
    assert found["`shares` of collects()"] == 6
    assert not any("graphs" in part for part in found)


def test_a_graph_of_an_earlier_step_is_told_as_such() -> None:
    model, optimizer = trained()

    def unrolls() -> None:
        state = torch.ones(512, 512)
        for _ in range(3):
            state = model(state)
        begun.append(number())
        state = model(state)
        raise MemoryError

    begun: list[int] = []
    found = census(unrolls, model, optimizer, begun)
    assert {held.part for held in found.values()} >= {"graphs of earlier steps in `state` of unrolls()", "activations"}


def test_gradients_of_another_model_and_the_states_of_several_optimizers_are_told_apart() -> None:
    model, optimizer = trained()
    other = model_of(1024)
    its = torch.optim.AdamW(other.parameters())
    other(torch.ones(1, 1024)).sum().backward()
    its.step()
    found = {held.part: held for held in take_census(entries(fail), model, its)}
    assert round(found["gradients of `other` of " + HERE].num_bytes / MIB) == 4
    assert round(found["optimizer state of `optimizer` of " + HERE].num_bytes / MIB) == 2
    of_other = take_census(entries(fail), other, optimizer)
    assert [held.name for held in of_other if held.kind == "gradients"] == ["`model` of " + HERE]


HERE = "test_gradients_of_another_model_and_the_states_of_several_optimizers_are_told_apart()"


@pytest.mark.parametrize(("passes", "earlier"), [(1, 0), (4, 0), (1, 3)])
def test_what_joins_several_passes_is_named_with_how_often_each_parameter_is_used(passes: int, earlier: int) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters())
    kept = sum(model(torch.ones(512, 512)).square().mean() for _ in range(earlier))
    begins = [torch.autograd._get_sequence_nr()]

    def step() -> None:
        total = kept + sum(model(torch.ones(512, 512)).square().mean() for _ in range(passes))
        raise MemoryError

    (held,) = [one for one in take_census(entries(step), model, optimizer, begins) if one.kind == "activations"]
    assert (held.part, held.num_passes > 1) == ("activations", passes > 1)
    if passes > 1:
        assert (held.name, held.num_passes) == ("`total` of step()", passes)


def test_what_is_kept_to_go_back_through_a_gradient_is_told_apart() -> None:
    model, optimizer = trained()

    def penalty() -> None:
        given = torch.ones(512, 512, requires_grad=True)
        (slope,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        loss = slope.norm()
        raise MemoryError

    # Input and result of the pass; what came down to tanh, what it gave, and what was made of it
    assert sizes(census(penalty, model, optimizer)) == {"activations": 2, "graph of a gradient": 3}


def test_two_models_of_one_step_join_no_passes() -> None:
    body, head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()])
    begins = []

    def step() -> None:
        given = torch.ones(64, 64)
        for part in (body, head):
            begins.append(torch.autograd._get_sequence_nr())
            given = part(given)
        raise MemoryError

    failed = entries(step)
    held = [one for one in take_census(failed, body, optimizer, begins) if one.kind == "activations"]
    assert held
    assert all(one.num_passes <= 1 for one in held)


def test_of_a_parameter_that_is_used_twice_in_a_pass_two_gradients_are_to_come() -> None:
    tied = torch.nn.Embedding(2**16, 16)

    def step() -> None:
        loss = (tied(torch.arange(2)) @ tied.weight.t()).sum()
        fail()

    found = take_census(entries(step), tied, torch.optim.SGD(tied.parameters()))
    pending = [(one.name, one.num_bytes, one.num_items) for one in found if one.kind == "due"]
    assert pending == [("`weight`", 4 * MIB, 2)]


def test_a_list_that_grows_here_and_is_joined_afterwards() -> None:
    found = census(lambda: evaluated(2))
    assert [(one.grows, one.is_joined) for one in found.values()] == [(True, True)]


def evaluated(mib: int) -> torch.Tensor:
    outputs = [numbers(mib)]
    outputs.append(numbers(fail()))  # type: ignore[func-returns-value]
    return torch.cat(list(outputs))
