"""Tensors without values, and those with."""

import copy
import gc
import io
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog
from tests.planning.compared import compared, mean_square, plain_step

pytestmark = pytest.mark.alone(forked=True)  # a plan counts what other tests have left alive


@pytest.fixture
def log() -> StorageLog:
    return StorageLog()


@pytest.fixture
def mode(log: StorageLog) -> Pretending:
    return Pretending(log)


def test_what_comes_from_a_weight_has_a_size_and_no_value(mode: Pretending) -> None:
    weight = mode.unknown(torch.empty(2**20, 2**12, device="meta"))  # 16 GiB
    with mode:
        result = torch.ones(3, 2**20) @ weight
    assert isinstance(result, FakeTensor)
    assert result.shape == (3, 2**12)
    with mode:
        assert result.sum().item() == 1.0


def test_whether_tensors_are_equal_is_known_of_the_same_one_and_of_other_shapes(log: StorageLog) -> None:
    answers = StandIns()
    mode = Pretending(log, answers=answers)
    weight, other = (torch.nn.Parameter(mode.unknown(torch.zeros(4))) for _ in range(2))
    with mode:
        assert torch.equal(weight, weight)
        assert not torch.equal(weight, mode.unknown(torch.zeros(4, 1)))
        assert not torch.equal(torch.zeros(3), weight)
        assert torch.allclose(weight, weight)
        assert not answers.conditions
        assert torch.equal(weight, other)
        assert torch.allclose(weight, other[:1])
    assert len(answers.conditions) == 2


def test_what_comes_from_the_batch_alone_is_computed(mode: Pretending) -> None:
    batch = torch.tensor([[1, 1, 0]])
    with mode:
        assert not batch.bool().all()
        assert batch.sum().item() == 2
        assert torch.arange(4).cumsum(0).tolist() == [0, 1, 3, 6]


def test_what_would_take_much_memory_is_not_computed(mode: Pretending, log: StorageLog) -> None:
    with mode:
        mask = torch.zeros(2**18, 2**18)  # 256 GiB
    assert isinstance(mask, FakeTensor)
    assert list(log.sizes) == [2**38]


def test_values_that_are_kept_take_so_much_memory_and_no_more(mode: Pretending) -> None:
    with mode:
        kept = [torch.ones(2**20) * 2 for _ in range(40)]  # as by a data set that keeps its rows
        assert sum(isinstance(one, FakeTensor) for one in kept) == 9
        assert not isinstance(torch.randperm(2**20), FakeTensor)  # what orders rows is known all the same
        kept.clear()
        assert not isinstance(torch.ones(2**20) * 2, FakeTensor)


def test_a_value_that_an_unknown_one_was_written_into_is_unknown(mode: Pretending) -> None:
    weight = mode.unknown(torch.zeros(1))
    with mode:
        total = torch.zeros(1)
        same = total
        total += weight
        assert total is same
        assert (total * 2).item() == 1.0


def test_lists_of_tensors_are_written_in_place(mode: Pretending) -> None:
    weights = [mode.unknown(torch.zeros(4)), mode.unknown(torch.zeros(8))]
    with mode:
        norms = torch._foreach_norm(weights)
        torch._foreach_mul_(weights, 2.0)
    assert [tuple(norm.shape) for norm in norms] == [(), ()]


def test_gradients_flow_through_known_and_unknown(mode: Pretending) -> None:
    weight = torch.nn.Parameter(mode.unknown(torch.zeros(10, 4)))
    with mode:
        loss = torch.nn.functional.embedding(torch.tensor([1, 2]), weight).sum()
        loss.backward()
    assert weight.grad.shape == (10, 4)


def test_a_mask_of_the_batch_chooses_as_many_as_it_does(mode: Pretending) -> None:
    weight = mode.unknown(torch.zeros(2, 3, 5)).requires_grad_()
    mask = torch.tensor([[True, False, True], [False, False, True]])
    with mode:
        chosen = weight[mask]
        chosen.sum().backward()
        copy = weight.detach().clone()
        copy[mask] = 0.0
    assert chosen.shape == (3, 5)
    assert weight.grad is not None


def test_a_mask_that_is_unknown_chooses_all(mode: Pretending) -> None:
    weight = mode.unknown(torch.zeros(2, 3))
    with mode:
        assert weight[weight > 0].shape == weight.masked_select(weight > 0).shape == (6,)
        assert weight.nonzero().shape == (6, 2)


def test_on_a_device_what_is_made_of_a_data_set_is_the_hosts(log: StorageLog) -> None:
    rows = torch.ones(1_000)
    with Pretending(log, on_device=True) as mode:
        batch = rows[:10] + 1
        assert (list(log.sizes), list(mode.host.sizes)) == ([], [4_000, 40])
        log.saw(batch, "batch")  # where it is a model's argument
        batch * 2
    assert list(log.sizes) == [40, 40]


def test_a_loss_over_alignments_has_a_size(mode: Pretending) -> None:
    weight = mode.unknown(torch.zeros(50, 2, 8)).requires_grad_()
    labels, rows, lengths = torch.ones(2, 6, dtype=torch.long), torch.tensor([50, 40]), torch.tensor([6, 3])
    with mode:
        loss = torch.nn.functional.ctc_loss(weight.log_softmax(-1), labels, rows, lengths)
        loss.backward()
    assert weight.grad is not None
    sizes = [50 * 2 * (2 * 6 + 1) * 4, 50 * 2 * 8 * 4]
    assert set(sizes) < set(mode.log.sizes)


def test_what_gathers_layers_in_an_older_torch_is_refused(mode: Pretending) -> None:
    import torch.distributed.fsdp  # defines the operation

    gather = torch.ops.fsdp.all_gather_copy_in.default
    as_before_2_9 = [mode.unknown(torch.empty(4))], [4], 4, 2, 0, torch.float32, torch.device("cpu")
    with pytest.raises(PlanError, match=r"torch 2\.9 or newer"):
        mode.__torch_dispatch__(gather, (), as_before_2_9)


@pytest.mark.fresh
@pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")  # newer names, which torch 2.6 lacks
def test_what_ranks_do_together_gives_the_tensors_it_was_given_and_keeps_none(mode: Pretending) -> None:
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    one, two, both = (mode.unknown(torch.empty(size)) for size in (4, 4, 8))
    with mode:
        distributed.all_reduce(one)
        distributed.all_gather([one, two], one)
        distributed.all_gather_into_tensor(both, one)
        distributed.reduce_scatter_tensor(one, both)
        distributed.all_to_all_single(both, both)
    assert [tensor.shape for tensor in (one, two, both)] == [(4,), (4,), (8,)]
    gone = weakref.ref(two)
    gc.disable()
    del two
    assert gone() is None


# Of a layer, rows and labels
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "smooth": lambda of, x, y: F.cross_entropy(of(x), y, label_smoothing=0.1),
    "expanded": lambda of, x, y: F.nll_loss(p := of(x).log_softmax(1), y) - p.sum(1).mean(),
    "in two buffers": lambda of, x, _: ((z := of(x) * 3) * 2 + z + z.tanh()).square().mean(),
    "called twice": lambda of, x, _: (of(x[:9]) - of(x[9:18])).mean(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sum_of_gradients_is_made_where_torch_makes_it(loss: str) -> None:
    model = torch.nn.Linear(16, 900)
    batch = {"x": torch.randn(500, 16), "y": torch.arange(500)}

    def step(batch: dict[str, torch.Tensor]) -> None:
        LOSSES[loss](model, *batch.values()).backward()
        model.zero_grad()

    plan = forgather_mem.plan(step, model, None, batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(3):
            step(batch)
    made = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]  # type: ignore[union-attr]
    most = max(itertools.accumulate(one.nbytes() for one in sorted(made, key=lambda one: one.start_ns())))
    alive = sum(one.nbytes for one in [*model.parameters(), *batch.values()])
    assert plan.peak_bytes == pytest.approx(alive + most, rel=0.01)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_a_sparse_gradient_has_a_row_for_each_token(optimizer: type[torch.optim.Optimizer]) -> None:
    model = torch.nn.Embedding(5000, 32, sparse=True)
    stepping = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    tokens = torch.arange(512).view(8, 64)
    compared(plain_step(model, stepping, mean_square), model, stepping, tokens, steps=2, rel=0.02)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_of_sparse_embeddings_has_a_row_for_each_index(mode: str) -> None:
    model = torch.nn.EmbeddingBag(500, 64, sparse=True, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    compared(step, model, optimizer, torch.randint(500, (32, 40)), steps=2, rel=0.02)


def test_grouped_products_are_planned_in_32_bits_as_well(mode: Pretending) -> None:
    rows = mode.unknown(torch.empty(32, 16)).requires_grad_()
    experts = mode.unknown(torch.empty(4, 16, 24)).requires_grad_()
    with mode:
        result = torch._grouped_mm(rows, experts, offs=torch.tensor([8, 16, 24, 32], dtype=torch.int32))
        result.square().sum().backward()
    assert (result.shape, result.dtype) == ((32, 24), torch.float32)
    assert rows.grad.dtype == torch.float32


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss", "l1_loss"])
def test_the_sum_of_a_loss_keeps_what_a_real_one_keeps(mode: Pretending, loss: str) -> None:
    given = torch.rand(64, 1), torch.rand(64, 1)
    real = getattr(torch.nn.functional, loss)(*given)
    with mode:
        planned = getattr(torch.nn.functional, loss)(*map(mode.unknown, given))
    assert planned.shape == real.shape
    assert planned.untyped_storage().nbytes() == real.untyped_storage().nbytes()


def test_attention_on_the_host_looks_for_rows_that_are_masked_as_a_whole() -> None:
    model, rows = torch.nn.Linear(8, 8), torch.randn(2, 4, 32, 8)

    def step(batch: torch.Tensor) -> None:
        given = model(batch)
        torch.nn.functional.scaled_dot_product_attention(given, given, given, dropout_p=0.1).sum().backward()

    plan = forgather_mem.plan(step, model, torch.optim.SGD(model.parameters()), rows)
    assert 2 * 4 * 32 * 32 in {one.size for one in plan.trace.requests()}, "as booleans, for a moment"


@pytest.mark.parametrize("work", [F.log_softmax, F.softmax, lambda of, _: F.layer_norm(of, (16,))])
def test_the_host_copies_first_what_has_gaps(mode: Pretending, log: StorageLog, work: Callable[..., object]) -> None:
    with mode:
        rows = mode.unknown(torch.empty(4, 8, 16))
        before = [work(rows, -1), len(log.sizes)].pop()
        work(rows[:, :-1], -1)
    assert list(log.sizes)[before:].count(4 * 7 * 16 * 4) == 2


def test_gradients_are_added_in_place_a_norm_is_contiguous_and_a_copy_of_a_model_has_no_gradients() -> None:
    first, norm, last = torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64)
    model = torch.nn.ModuleList([first, norm, last])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    copies: list[object] = []

    def tied_to(weights: dict[str, torch.Tensor]) -> object:
        assert weights["first"].untyped_storage()._cdata == weights["again"].untyped_storage()._cdata
        return weights

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        rows = first(batch)
        rows = rows + last(norm(rows.transpose(1, 2)).transpose(1, 2))
        every_second, zeros = torch.arange(0, 40, 2), torch.zeros(64, 1, 64).long()
        pieces = rows[:, every_second], rows.index_select(1, every_second), rows.gather(1, zeros), rows[:, :1]
        torch.cat([*pieces, rows.max(1, keepdim=True).values], 1).square().mean().backward()
        tied = {"first": last.weight.detach(), "again": last.weight.detach()}
        torch.save(tied, saved := io.BytesIO())
        saved.seek(0)
        copies[:] = [copy.deepcopy(model), *map(tied_to, [copy.deepcopy(tied), copy.copy(tied), torch.load(saved)])]
        optimizer.step()

    compared(step, model, optimizer, torch.randn(64, 40, 8), steps=2, rel=0.02)
