"""Random small loops: a plan is what goes into or out of their operations at once."""

from collections import deque
from collections.abc import Callable

import hypothesis
import pytest
import torch
from hypothesis import strategies
from torch import nn

import forgather_mem
from forgather_mem.planning.result import Plan
from tests.planning.counted import Counted

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": lambda of: torch.optim.SGD(of, lr=0.01, momentum=0.9),
}
TEACHERS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "linear": lambda: nn.Linear(64, 64),
    "norm": lambda: nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 400), nn.Linear(400, 64)),
}


@hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 8)  # more in `make soak`
@hypothesis.given(
    teacher=strategies.sampled_from(sorted(TEACHERS)),
    optimizers=strategies.lists(strategies.sampled_from(sorted(OPTIMIZERS)), min_size=1, max_size=2),
    every=strategies.integers(1, 4),
    cached=strategies.integers(0, 3),
    buffers=strategies.booleans(),
    averages=strategies.booleans(),
    logs=strategies.booleans(),
    hooked=strategies.booleans(),
    summed=strategies.sampled_from(["", "smooth", "expanded", "twice"]),
    widths=strategies.lists(strategies.integers(16, 300), min_size=1, max_size=3),
)
def test_the_plan_is_what_the_tensors_take(
    teacher: str, optimizers: list[str], every: int, cached: int, buffers: bool, averages: bool, logs: bool,
    hooked: bool, summed: str, widths: list[int],
) -> None:  # fmt: skip
    layers = [nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64)) for width in widths]
    model = nn.Sequential(*layers, *([nn.BatchNorm1d(64)] if buffers else []))
    frozen = TEACHERS[teacher]().requires_grad_(False)
    parts = [layers[:1], layers[1:]] if len(optimizers) == 2 and len(layers) > 1 else [[model]]
    made = [
        OPTIMIZERS[kind]([one for layer in part for one in layer.parameters()])
        for kind, part in zip(optimizers, parts, strict=False)
    ]
    kept, seen, told = deque[torch.Tensor](maxlen=cached), 0, list[float]()
    averaged = [one.detach().clone() for one in model.parameters()] if averages else []
    features: list[torch.Tensor] = []
    if hooked:
        layers[0].register_forward_hook(lambda _, __, output: features.__setitem__(slice(None), [output]))

    def step(batch: torch.Tensor) -> None:
        nonlocal seen
        seen += 1
        found = model(batch)
        kept.append(found.detach())
        loss = (found - frozen(batch)).square().mean() + sum(one.mean() for one in features)
        if summed == "smooth":
            loss = loss + nn.functional.cross_entropy(found, batch.argmax(1), label_smoothing=0.1)
        elif summed:
            chosen = found.log_softmax(1)
            loss = loss + chosen.square().mean() - (chosen.sum(1).mean() if summed == "expanded" else chosen.mean(0)[0])
        loss.backward()
        if logs:
            told.append(loss.item())
        if seen % every == 0:
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
            for mine, own in zip(averaged, model.parameters(), strict=bool(averaged)):
                mine.lerp_(own.detach(), 0.1)

    batch = torch.randn(96, 64)
    plan = forgather_mem.plan(step, model, made, batch)
    seen = 0
    kept.clear()
    with Counted() as counted:
        counted.see(batch, averaged)
        for _ in range(2 * every + 4):
            step(batch)
    assert plan.peak_bytes == pytest.approx(counted.peak_bytes, rel=0.01)


def test_without_what_earlier_passes_leave_for_a_backward_pass_a_step_takes_what_one_pass_does() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def plan_of(num_passes: int) -> Plan:
        def step(batch: torch.Tensor) -> None:
            sum(model(batch).square().mean() for _ in range(num_passes)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return forgather_mem.plan(step, model, optimizer, torch.randn(512, 64))

    def chained(batch: torch.Tensor) -> None:
        model(model(model(batch))).square().mean().backward()
        optimizer.step()

    assert forgather_mem.plan(chained, model, optimizer, torch.randn(512, 64)).trace.joined == {}, "one pass"
    one, three = plan_of(1), plan_of(3)
    assert (max(three.trace.joined), one.trace.joined) == (3, {})
    without = three.trace.without(set().union(*three.trace.joined.values()))
    at = max(three.phases, key=lambda row: row.bytes)
    assert (made := three.trace.made_at(at.step, at.phase)) is not None
    assert made == ((__file__, plan_of.__code__.co_firstlineno + 2), pytest.approx(three.peak_bytes, rel=0.4))
    assert max(made.before_bytes + made.size for made in without.requests()) == one.peak_bytes < three.peak_bytes
