import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from forgather_mem.engine.run import Run
from forgather_mem.probes import TensorProbe, live_tensors
from forgather_mem.probes.tensors import storages_of, tensor_bytes

pytestmark = pytest.mark.alone(forked=True)

Read = Callable[..., dict[str, float]]
FLOAT = 4


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(10, dtype=torch.int64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(rows)).sum()


def test_parameters_gradients_state_and_buffers_are_what_their_shapes_say() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = tensor_bytes(model, optimizer)
    model(torch.rand(4, 32)).sum().backward()
    with_gradients = tensor_bytes(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    after = tensor_bytes(model, optimizer)

    num = 32 * 16 + 16 + 2 * 16
    assert before["tensors/parameters_bytes"] == num * FLOAT
    assert before["tensors/buffers_bytes"] == 2 * 16 * FLOAT + 8  # mean, variance and a 64-bit count
    assert before["tensors/optimizer_bytes"] == 0
    assert "tensors/gradients_bytes" not in before
    assert with_gradients["tensors/gradients_bytes"] == num * FLOAT
    assert "tensors/gradients_bytes" not in after
    # two moments for each number, and one step count for each of the four parameters
    assert after["tensors/optimizer_bytes"] == 2 * num * FLOAT + 4 * FLOAT


def test_tied_weights_count_once() -> None:
    assert tensor_bytes(Tied())["tensors/parameters_bytes"] == 100 * 8 * FLOAT


def test_a_view_counts_its_whole_storage_once() -> None:
    whole = torch.zeros(1000)
    model = nn.Module()
    model.first = nn.Parameter(whole[:10])
    model.second = nn.Parameter(whole[500:])
    assert tensor_bytes(model)["tensors/parameters_bytes"] == 1000 * FLOAT


def test_the_state_is_found_through_accelerate_s_optimizer(run: Run, read: Read) -> None:
    accelerator = Accelerator(cpu=True)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.tensor([1, 2])))
    optimizer.step()
    values = read(TensorProbe(), model=model, optimizer=optimizer)
    assert values["tensors/optimizer_bytes"] == 100 * 8 * FLOAT
    assert values["tensors/gradients_bytes"] == 100 * 8 * FLOAT


def test_state_in_nested_lists_and_dicts_is_found() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[next(iter(model.parameters()))]
    assert isinstance(state["old_dirs"], list)
    assert tensor_bytes(model, optimizer)["tensors/optimizer_bytes"] >= state["d"].numel() * FLOAT


def test_a_tensor_on_the_meta_device_holds_nothing() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000)
    assert tensor_bytes(model)["tensors/parameters_bytes"] == 0


def test_lazy_parameters_hold_nothing_yet() -> None:
    assert tensor_bytes(nn.LazyLinear(5))["tensors/parameters_bytes"] == 0


def test_a_fake_tensor_holds_nothing() -> None:
    with torch._subclasses.FakeTensorMode():
        model = nn.Linear(1000, 1000)
    assert tensor_bytes(model)["tensors/parameters_bytes"] == 0


def test_a_tensor_made_of_inner_tensors_holds_what_they_hold() -> None:
    inner = TwoTensor(torch.zeros(100), torch.zeros(100))  # as a quantised tensor is: values and scales
    assert sum(size for _, size in storages_of(inner)) == 200 * FLOAT


def test_a_sparse_tensor_holds_its_indices_and_values() -> None:
    assert sum(size for _, size in storages_of(torch.eye(64).to_sparse())) == 64 * FLOAT + 2 * 64 * 8


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_of_a_sparse_tensor_of_another_layout_nothing_is_known() -> None:
    assert storages_of(torch.eye(64).to_sparse_csr()) == []


def test_of_a_distributed_tensor_the_part_on_this_rank_counts() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = DeviceMesh("cpu", list(range(4)))
        model = nn.Module()
        model.weight = nn.Parameter(DTensor.from_local(torch.zeros(100), mesh, [Shard(0)]))
        assert model.weight.numel() == 400
        assert tensor_bytes(model)["tensors/parameters_bytes"] == 100 * FLOAT
    finally:
        torch.distributed.destroy_process_group()


def test_without_a_model_nothing_is_given(read: Read) -> None:
    assert read(TensorProbe(), event="evaluate") == {}
    assert read(TensorProbe(), model=object(), optimizer=object()) == {}


def test_each_event_has_its_own_reading_within_the_budget(run: Run, read: Read) -> None:
    model = Tied()
    probe = TensorProbe(budget_frac=1e-6).begin(run)
    assert read(probe, event="pre_optimizer_step", model=model)
    assert read(probe, event="step_end", model=model)
    assert read(probe, event="step_end", model=model) == {}


def held(dtype: str) -> tuple[int, int]:
    rows = [row for row in live_tensors() if (row.dtype, row.device) == (dtype, "cpu")]
    return (rows[0].num_tensors, rows[0].num_bytes) if rows else (0, 0)


@pytest.fixture(params=["not frozen", "frozen"])
def heap(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    yield gc.freeze if request.param == "frozen" else (lambda: None)
    gc.unfreeze()


def test_live_tensors_are_found_by_kind_with_gradients_their_storages_once_and_are_not_kept_alive(
    heap: Callable[[], None],
) -> None:
    gc.collect()
    num, size = held("torch.complex128")
    weight = torch.zeros(500, dtype=torch.complex128, requires_grad=True)
    weight.abs().sum().backward()
    keep = {"cycle": torch.zeros(1000, dtype=torch.complex128)}
    keep["self"] = keep
    views = [keep["cycle"][:10], keep["cycle"].reshape(10, 100)]
    heap()
    assert held("torch.complex128") == (num + 3 + 2, size + 16_000 + 2 * 8_000)
    gone = weakref.ref(weight)
    del views, weight
    assert gone() is None
    gc.unfreeze()
    keep.clear()
    gc.collect()
    assert held("torch.complex128") == (num, size)


def test_the_largest_kind_comes_first() -> None:
    keep = torch.zeros(3_000_000, dtype=torch.complex128)
    rows = live_tensors()
    assert rows[0].dtype == "torch.complex128"
    assert rows == sorted(rows, key=lambda row: -row.num_bytes)
    del keep
