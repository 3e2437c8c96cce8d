"""Loops that know nothing of us: their steps and phases are heard, and nothing of them changes."""

import gc
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import TrainerCallback

from forgather_mem.callbacks import MemoryCallback, OOMReporter
from forgather_mem.engine.run_of import run_of
from forgather_mem.engine.settings import settings_of_training
from forgather_mem.loops.observed import LOOPS, ObservedLoop, _as_one
from forgather_mem.loops.state import default_arguments
from forgather_mem.loops.training_loop import TrainingLoop
from forgather_mem.probes import TensorProbe
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.programs import printed_by

# Small heaps, and no optimizer of another test: one that has been left is waited for in the first steps
pytestmark = pytest.mark.alone(forked=True)

STEPS = 30
EACH_STEP = Rule(Every(steps=1), [lambda moment, sample: {"mine/step": float(moment.step)}])


class Phases(TrainerCallback):
    """Notes the events, and counts the phases that begin."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.begun: Counter[str] = Counter()
        self.shapes: set[tuple[int, ...]] = set()

    def phase_begin(self, phase: str) -> None:
        self.begun[phase] += 1

    def phase_end(self, phase: str) -> None: ...

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.events.append("step_begin")

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 1:
            run = run_of(state)
            run.watch_phases(self)
            run.watch_batches(lambda arguments, keywords: self.shapes.add(tuple(arguments[0].shape)))
        self.events.append("step_end")

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.events.append("evaluate")

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.events.append("train_end")


@pytest.fixture
def watching() -> Iterator[tuple[ObservedLoop, Capture, Phases]]:
    capture, phases = Capture(), Phases()
    loop = ObservedLoop(default_arguments(), lambda: [MemoryCallback([EACH_STEP], [capture]), phases])
    LOOPS.add(loop)
    loop.listen()
    gc.collect()  # an optimizer that is still there in a cycle is waited for in the first steps
    yield loop, capture, phases
    loop.close()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS, micro_batches: int = 1) -> nn.Module:
    for _ in range(steps):
        for _ in range(micro_batches):
            model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def plainly() -> nn.Module:
    model = net()
    return train(model, torch.optim.AdamW(model.parameters()))


def accumulating() -> nn.Module:
    model = net()
    return train(model, torch.optim.AdamW(model.parameters()), micro_batches=4)


def in_two_threads() -> nn.Module:
    """The other one's steps are not those of the training that is watched."""
    ready = threading.Barrier(2)

    def train_one(number: int) -> None:
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
        ready.wait()
        train(model, torch.optim.SGD(model.parameters()), STEPS)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train_one, range(2)))
    return nn.ModuleList([])


def in_a_thread() -> nn.Module:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(plainly).result()


def two_optimizers() -> nn.Module:
    generator, critic = nn.Sequential(nn.Linear(4, 8)), net()
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.fill_(0.1)
    for_generator, for_critic = (torch.optim.Adam(model.parameters()) for model in (generator, critic))
    for _ in range(STEPS):
        for_critic.zero_grad()
        critic(generator(torch.randn(4, 4)).detach()).mean().backward()
        for_critic.step()
        for_generator.zero_grad()
        critic(generator(torch.randn(4, 4))).mean().backward()
        for_generator.step()
    return nn.ModuleList([generator, critic])


def an_optimizer_for_each_parameter_inside_the_backward_pass() -> nn.Module:
    model = net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    hooks = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
    for _ in range(STEPS):
        model(torch.randn(16, 8)).square().mean().backward()
    for hook in hooks:
        hook.remove()  # the collector doesn't see that they hold the optimizers
    return model


def a_scaler_that_skips() -> nn.Module:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS + 5):
        loss = model(torch.randn(16, 8)).square().mean()
        scaler.scale(loss * float("inf") if step % 7 == 3 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


def a_closure() -> nn.Module:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for _ in range(STEPS):
        rows = torch.randn(16, 8)

        def closure(rows: torch.Tensor = rows) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(rows).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def a_teacher_with_an_optimizer_of_its_own() -> nn.Module:
    teacher, student = net(), net()
    unused = torch.optim.SGD(teacher.parameters())
    optimizer = torch.optim.AdamW(student.parameters())
    for _ in range(STEPS):
        with torch.no_grad():
            wanted = teacher(torch.randn(16, 8))
        (student(torch.randn(16, 8)) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert unused.state_dict()
    return student


def data_parallel() -> nn.Module:
    model = nn.DataParallel(net())
    return train(model, torch.optim.AdamW(model.parameters()))


def folds_that_are_kept() -> nn.Module:
    kept = []
    for _ in range(STEPS // 3):
        model = net()
        kept.append((model, optimizer := torch.optim.AdamW(model.parameters())))
        train(model, optimizer, 3)
    return model


@pytest.mark.parametrize(
    "loop",
    [
        plainly, accumulating, in_a_thread, in_two_threads, two_optimizers,
        an_optimizer_for_each_parameter_inside_the_backward_pass, a_scaler_that_skips, a_closure,
        a_teacher_with_an_optimizer_of_its_own, data_parallel, folds_that_are_kept,
    ],
    ids=lambda loop: loop.__name__,
)  # fmt: skip
def test_steps_are_counted_and_weights_are_as_without_us(
    loop: Callable[[], nn.Module], watching: tuple[ObservedLoop, Capture, Phases]
) -> None:
    watched, capture, _ = watching
    torch.manual_seed(1)
    with_us = loop()
    watched.close()
    torch.manual_seed(1)
    alone = loop()
    for ours, theirs in zip(with_us.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert max(record.step for record in capture.samples) == STEPS
    assert not any("__call__" in vars(type(module)) for module in with_us.modules())


def test_what_is_read_of_several_optimizers_is_of_all_and_leaves_them_alone() -> None:
    models = net(), net()
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=1)
    both = _as_one(optimizers)
    assert sum(map(len, both.state.values())) == 2 * 3 * 4
    assert settings_of_training(None, nn.ModuleList(models), both)["optimizer"] == "Adam, Adam"
    assert [len(one.state_dict()["state"]) for one in optimizers] == [4, 4]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_gradients_of_a_step_are_the_most_that_there_are_before_any_of_its_optimizers(order: list[int]) -> None:
    gc.collect()
    capture, models = Capture(), [nn.Linear(4, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    rule = Rule(Every(steps=1, at="pre_optimizer_step"), [TensorProbe(budget_frac=1e-9)])
    loop = ObservedLoop(default_arguments(), lambda: [MemoryCallback([rule], [capture], strict=True)])
    loop.listen()
    for number in order:
        rows = models[0](torch.randn(4, 4))
        models[1](rows.detach() if number else rows).mean().backward()  # the critic's own pass, or one through both
        optimizers[number].step()
        nn.ModuleList(models).zero_grad()
    loop.close()
    assert [one.values["tensors/gradients_bytes"] for one in capture.samples] == [36 + 160]


def test_the_phases_of_a_step_and_the_shape_of_its_batch(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    watched, _, phases = watching
    accumulating()(torch.randn(16, 8))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones(1, requires_grad=True).backward).result()  # no pass of this training
    watched.close()
    steps = STEPS - 1  # all after the first
    assert phases.begun == {"data": steps, "forward": 4 * steps + 1, "backward": 4 * steps, "optimizer": steps}
    assert phases.shapes == {(16, 8)}
    assert phases.events == ["step_begin", "step_end"] * STEPS + ["step_begin", "train_end"]


def test_the_model_of_each_fold_is_heard(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    watched, _, phases = watching
    folds_that_are_kept()
    watched.close()
    assert phases.begun["forward"] == 2 * STEPS // 3, "of each the first step is heard from its optimizer on"


def test_an_evaluation_is_a_phase_of_its_own(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    watched, _, phases = watching
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(3):
        train(model.train(), optimizer, steps=5)
        with torch.no_grad():
            model(torch.randn(64, 8))  # as what looks for hard samples: no pass of a step
        model.eval()
        with torch.set_grad_enabled(number == 1):  # a graph that nobody goes back through changes nothing
            for _ in range(4):
                model(torch.randn(64, 8))
    watched.close()
    assert phases.begun["forward"] == 14, "the first step is heard from its optimizer on"
    assert phases.begun["evaluate"] == 3
    assert phases.events.count("evaluate") == 2  # the last has no step after it
    assert phases.events.count("step_end") == 15


@pytest.mark.fresh  # who compiles has no look at lines from then on
@pytest.mark.parametrize(
    "mode", ["wrapped", *(pytest.param(mode, marks=pytest.mark.soak) for mode in ("in place", "a function"))]
)
def test_a_compiled_model_has_no_more_graph_breaks_and_is_compiled_no_more_often(
    mode: str, watching: tuple[ObservedLoop, Capture, Phases]
) -> None:
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    def compiled() -> tuple[int, int]:
        reset()
        counters.clear()
        model = net()
        called: Any = model
        if mode == "in place":
            model.compile(backend="eager")
        elif mode == "wrapped":
            called = torch.compile(model, backend="eager")
        else:
            called = torch.compile(lambda rows: model(rows), backend="eager")
        optimizer = torch.optim.AdamW(model.parameters())
        train(called, optimizer, steps=10)
        return sum(counters["graph_break"].values()), counters["frames"]["total"]

    watched, capture, _ = watching
    with_us = compiled()
    watched.close()
    assert with_us == compiled()
    assert capture.samples[-1].step == 10


TRACES: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "jit": lambda model, rows: torch.jit.trace(model, rows).code,
    "export": lambda model, rows: torch.export.export(model, (rows,)),
    "export of any size": lambda model, rows: torch.export.export(
        model, (rows,), dynamic_shapes=({0: torch.export.Dim("rows")},)
    ),
    "make_fx": lambda model, rows: make_fx(lambda batch: model(batch))(rows).code,
    "make_fx of any size": lambda model, rows: (
        make_fx(lambda batch: model(batch), tracing_mode="symbolic", _allow_non_fake_inputs=True)(rows).code
    ),
    "fx": lambda model, rows: torch.fx.symbolic_trace(nn.Sequential(model, nn.Linear(1, 1))).code,
    "vmap": lambda model, rows: torch.vmap(model)(rows),
    "jacobian": lambda model, rows: torch.func.jacrev(model)(rows).shape,
    "ensemble": lambda model, rows: (
        torch.vmap(lambda own: torch.func.functional_call(model, own, (rows,)), in_dims=(0,))(
            {name: torch.stack((value, value)) for name, value in model.named_parameters()}
        ).shape
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("told", [False, True], ids=["observed", "TrainingLoop"])
@pytest.mark.parametrize("make", [net, lambda: nn.Linear(8, 1)], ids=["blocks", "one layer"])
def test_a_model_is_traced_in_its_loop_as_without_us(make: Callable[[], nn.Module], told: bool, tmp_path: Path) -> None:
    """No warning more, the same graphs, and no size that is only traced is kept."""

    def of_its_loop(begin: Callable[[nn.Module, torch.optim.Optimizer], Callable[[], object]]) -> Any:
        torch.manual_seed(0)
        model, rows = make(), torch.ones(16, 8)
        optimizer = torch.optim.SGD(model.parameters())
        end = begin(model, optimizer)
        train(model, optimizer, 3)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            traces = {name: str(trace(model, rows)) for name, trace in TRACES.items()}
        train(model, optimizer, 3)
        uses: Any = reporter._run.begun(reporter.rules[0].do[0]) if reporter._run is not None else None
        batches = (uses.uses.batch, uses.uses.largest) if uses is not None else ()
        kept.update(type(size) for batch in batches if batch is not None for size in (batch.rows, batch.size))
        end()
        return traces, sorted(str(one.message) for one in warned)

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], object]:
        arguments = default_arguments()
        arguments.output_dir = str(tmp_path)
        if not told:
            loop = ObservedLoop(arguments, lambda: [MemoryCallback(), reporter])
            LOOPS.add(loop)
            loop.listen()
            return loop.close
        block = TrainingLoop(model, optimizer, args=arguments, callbacks=[MemoryCallback(), reporter]).train()
        block.__enter__()
        return lambda: block.__exit__(None, None, None)

    reporter, kept = OOMReporter(), set[type]()
    assert of_its_loop(watched) == of_its_loop(lambda *_: int)
    assert kept == {int}


def test_a_loop_that_tells_of_itself_is_not_observed_and_one_after_it_is(
    watching: tuple[ObservedLoop, Capture, Phases], own_folder: None
) -> None:
    watched, capture, _ = watching
    model, own = net(), Capture()
    optimizer = torch.optim.AdamW(model.parameters())
    told = TrainingLoop(model, optimizer, callbacks=[MemoryCallback([EACH_STEP], [own])])
    with told.train():
        for _ in range(4):
            with told.step():
                train(model, optimizer, steps=1)
    assert (len(own.samples), capture.samples) == (4, [])
    train(model, optimizer, steps=20)  # an optimizer of another test that is still there is waited for at first
    watched.close()
    assert capture.samples[-1].step == 20


@pytest.mark.usefixtures("unfrozen")
def test_models_and_optimizers_are_not_kept_alive(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, steps=3)
    alive = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert (alive[0](), alive[1]()) == (None, None)


def test_a_failure_of_ours_does_not_reach_the_loop(
    watching: tuple[ObservedLoop, Capture, Phases], caplog: pytest.LogCaptureFixture
) -> None:
    watched, _, phases = watching

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    phases.on_step_begin = fails  # type: ignore[method-assign]
    plainly()
    watched.close()
    assert "training continues" in caplog.text


def test_callbacks_that_can_not_be_made_are_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    def fails() -> list[TrainerCallback]:
        tried.append(1)
        raise RuntimeError("ours")

    watched = ObservedLoop(default_arguments(), fails)
    watched.listen()
    plainly()
    watched.close()
    assert (len(tried), watched.has_failed, watched.is_over) == (1, True, True)
    assert "training continues" in caplog.text


def by_hand(loop: ObservedLoop, optimizer: torch.optim.Optimizer | None = None) -> None:
    model = net()
    for number in range(STEPS):
        model.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)  # type: ignore[arg-type]
        loop.end_steps()
        if number == 10:
            with loop.phase("save"):
                pass
            with loop.phase("evaluate"), torch.no_grad():
                with loop.phase("save"):
                    pass
                model.eval()(torch.randn(16, 8))
            model.train()


def test_a_loop_without_an_optimizer_tells_its_steps(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    loop, capture, phases = watching
    by_hand(loop)
    assert [sample.step for sample in capture.samples] == list(range(1, STEPS + 1))
    assert phases.begun["forward"] == phases.begun["backward"] == STEPS - 1, "of all steps after the first"
    assert (phases.begun["evaluate"], phases.begun["save"], phases.shapes) == (1, 1, {(16, 8)})


def test_where_an_optimizer_is_heard_its_steps_count(watching: tuple[ObservedLoop, Capture, Phases]) -> None:
    loop, capture, _ = watching
    by_hand(loop, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1))
    assert [sample.step for sample in capture.samples] == list(range(1, STEPS + 1))


@pytest.mark.parametrize(
    ("when", "steps"),
    [(Every(steps=5, at="pre_optimizer_step"), [5, 10]), (Every(epochs=1), [])],
    ids=["each 5th", "none"],
)
def test_of_steps_in_which_nothing_is_due_the_phases_are_known_all_the_same(when: Every, steps: list[int]) -> None:
    read: list[int] = []
    seen: list[str] = []

    def reads(moment: Any, sample: Any) -> dict[str, float]:
        read.append(moment.step)
        return {}

    def phase() -> str:
        run = loop._events.run() if loop._events is not None else None
        return run.phase if run is not None else ""

    class Looks(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append(phase())
            return super().forward(rows)

    gc.collect()  # an optimizer that another test has left would be waited for
    rule = Rule(when=when, do=[reads])
    loop = ObservedLoop(default_arguments(), lambda: [MemoryCallback(rules=[rule], strict=True)])
    loop.listen()
    model = Looks(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        loss = model(torch.ones(1, 2)).sum()
        seen.append(phase())
        loss.backward()
        seen.append(phase())
        optimizer.step()
        seen.append(phase())
    loop.close()
    assert seen[-8:] == ["forward", "forward", "backward", "data"] * 2, "the loss belongs to the forward pass"
    assert read == steps


NEAR_A_LIMIT = """
import resource, torch, forgather_mem
from forgather_mem.system.procfs import kib_fields
from forgather_mem.telemetry.run_session import RESERVE
used = kib_fields(open("/proc/self/status", "rb").read())[b"VmData"]
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**26,) * 2)
watching = forgather_mem.watch()
print(sum(map(len, RESERVE)))
"""


def test_near_a_limit_little_is_held_to_explain_what_comes_before_a_step(tmp_path: Path) -> None:
    assert 0 < int(printed_by(NEAR_A_LIMIT, folder=tmp_path)) <= 2**26 / 16
