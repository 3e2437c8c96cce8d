"""Loops without a Trainer, against torch's own tracker."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

import forgather_mem
from forgather_mem.planning.isolation.child import in_a_child
from forgather_mem.planning.model import notes_on
from tests.planning.compared import plain_step

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]

Batch = dict[str, torch.Tensor]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layer(self.tokens(input_ids)).mean(1)))


def batch_of(rows: int = 8, length: int = 32) -> Batch:
    return {"input_ids": torch.randint(100, (rows, length)), "labels": torch.randint(10, (rows,))}


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, autocast: bool = False) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def tracked(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[Batch], None], batch: Batch) -> int:
    """What torch's tracker counts in two real steps, in a child, since it keeps weights for ever."""
    return in_a_child(lambda: _tracked(model, optimizer, step, batch))


def _tracked(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[Batch], None], batch: Batch) -> int:
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *batch.values())
    with tracker:
        step(batch)
        tracker.reset_mod_stats()
        step(batch)
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {"centered": True}),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_the_peak_is_that_of_torchs_tracker(
    optimizer_class: type[torch.optim.Optimizer], options: dict[str, object], autocast: bool
) -> None:
    model = Classifier()
    optimizer = optimizer_class(model.parameters(), **options)  # type: ignore[call-arg]
    step, batch = step_of(model, optimizer, autocast), batch_of()
    plan = forgather_mem.plan(step, model, optimizer, batch)
    assert plan.peak_bytes == pytest.approx(tracked(model, optimizer, step, batch), rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_gradient_scaler_steps(fused: bool, unscales: bool) -> None:
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def step(batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(batch["input_ids"]), batch["labels"])
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    plan = forgather_mem.plan(step, model, optimizer, batch_of())
    assert plan.peak_bytes == pytest.approx(tracked(model, optimizer, step, batch_of()), rel=0.005)


def test_nothing_has_changed_after_it() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    forgather_mem.plan(step_of(model, optimizer), model, optimizer, batch_of())
    torch.set_rng_state(random)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_another_size_of_batch_is_planned_from_the_one_given() -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters())
    step = step_of(model, optimizer)
    large = forgather_mem.plan(step, model, optimizer, batch_of(24, 64))
    assert forgather_mem.plan(step, model, optimizer, batch_of(), rows=24, length=64) == large
    assert (large.rows, large.length) == (24, 64)


def test_a_model_larger_than_this_machine_is_planned() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**17, 2**17, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    plan = forgather_mem.plan(plain_step(model, optimizer), model, optimizer, torch.zeros(1, 2**17))
    assert plan.parts["parameters"] == plan.parts["gradients"] == 2**36
    assert plan.parts["optimizer"] == pytest.approx(2 * 2**36)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_step_of_a_lightning_module_is_planned() -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = Classifier()

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.classifier(batch["input_ids"]), batch["labels"])
            self.log("loss", loss)
            return loss

    module = Module()
    optimizer = torch.optim.AdamW(module.parameters())

    def step(batch: Batch) -> None:
        module.training_step(batch, 0).backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = forgather_mem.plan(step, module, optimizer, batch_of())
    assert plan.peak_bytes == pytest.approx(tracked(module, optimizer, step, batch_of()), rel=0.005)
    assert [row.phase for row in plan.phases if row.step == 2] == ["data", "forward", "backward", "optimizer"]


def test_optimizers_that_are_not_told_step_as_well() -> None:
    first, second = nn.Linear(64, 256), nn.Linear(256, 64)
    optimizers = [torch.optim.AdamW(part.parameters()) for part in (first, second)]
    model, kept = nn.Sequential(first, second), [*first.parameters(), *second.parameters()]

    def step(batch: Batch) -> None:
        model(batch["rows"]).sum().backward()
        nn.utils.clip_grad_norm_(kept, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    batch = {"rows": torch.zeros(8, 64)}
    plan = forgather_mem.plan(step, model, optimizers[0], batch)
    assert plan.highest_parts()["optimizer"] == pytest.approx(2 * plan.highest_parts()["parameters"], rel=0.01)
    assert plan.peak_bytes == pytest.approx(tracked(model, optimizers[0], step, batch), rel=0.005)


def test_an_optimizer_in_the_hooks_of_parameters_steps() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])

    def stepping(parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        optimizer = torch.optim.AdamW([parameter])

        def stepped(_: torch.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        return stepped

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(stepping(parameter))
    plan = forgather_mem.plan(lambda batch: model(batch).sum().backward(), model, None, torch.zeros(8, 64))
    parts = plan.highest_parts()
    assert parts["optimizer"] == pytest.approx(2 * parts["parameters"], rel=0.01)
    assert parts["gradients"] < parts["parameters"] / 2, "each goes at once"


def test_an_optimizer_that_never_steps_makes_it_a_lower_bound() -> None:
    model, other = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizers = [torch.optim.SGD(part.parameters()) for part in (model, other)]
    plan = forgather_mem.plan(plain_step(model, optimizers[0]), model, optimizers, torch.zeros(8, 8))
    assert plan.notes == ("Not in the plan is what comes after 64 batches: SGD has not stepped.",)
    assert str(plan).startswith("Peak at least ")


def test_a_distribution_is_not_asked_whether_it_is_one() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Batch) -> None:
        chosen = torch.distributions.Categorical(logits=model(batch["rows"]))
        (-chosen.log_prob(chosen.sample())).mean().backward()
        optimizer.step()

    assert forgather_mem.plan(step, model, optimizer, {"rows": torch.zeros(8, 8)}).phase


def test_of_a_kernel_that_keeps_what_only_it_knows_a_plan_is_a_lower_bound() -> None:
    model = nn.LSTM(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    step = plain_step(lambda batch: model(batch)[0], optimizer)
    plan = forgather_mem.plan(step, model, optimizer, torch.zeros(4, 2, 8), on_device=True)
    assert str(plan).startswith("Peak at least ")
    assert plan.notes == ("Not in the plan is the workspace of LSTM, a lower bound.",)
    assert notes_on([nn.Conv1d], False)[0].startswith("Not in the plan is what oneDNN takes within Conv1d: ")


class Averages:
    model: nn.Module | None = None


def test_a_model_that_is_copied_in_a_step_is_named_as_a_whole() -> None:
    model, averages = nn.Linear(512, 512), Averages()
    optimizer = torch.optim.SGD(model.parameters())

    def step(batch: torch.Tensor) -> None:
        averages.model = averages.model or copy.deepcopy(model)
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = forgather_mem.plan(step, model, optimizer, torch.zeros(4, 512))
    assert plan.notes == ("Kept from step to step: `Averages.model` 1.0 MiB.",)
