"""A plain PyTorch loop fires what a Trainer fires, in its order."""

import gc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from forgather_mem.callbacks import (
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    ScheduledGarbageCollector,
    SimpleGarbageCollector,
)
from forgather_mem.loops.training_loop import TrainingLoop
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.phase_notes import PhaseNotes
from tests.training import Tokens, make_trainer, tiny_model

# A loop without a folder writes to ./runs, as SummaryWriter does
pytestmark = pytest.mark.usefixtures("own_folder")


class Order(TrainerCallback):
    """Notes every event, and the step that it belongs to."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        for event in EVENTS:
            setattr(self, f"on_{event}", partial(self._note, event))

    def _note(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append((event, state.global_step))


def train_plainly(
    loop: TrainingLoop, *, epochs: int = 1, steps: int = 3, accumulation: int = 1, evaluate: str = "no"
) -> None:
    """`evaluate`: "no", after every epoch, or, "steps", after every step, where the model is saved too."""
    rows = torch.utils.data.DataLoader(Tokens(4 * steps * accumulation), batch_size=4)
    with loop.train():
        for _ in range(epochs):
            with loop.epoch(num_steps=steps):
                batches = iter(rows)
                for _ in range(steps):
                    with loop.step():
                        for _ in range(accumulation):
                            with loop.substep():
                                loop.model(**next(batches)).loss.backward()
                        loop.optimizer.step()
                        loop.optimizer.zero_grad()
                    if evaluate == "steps":
                        evaluate_plainly(loop)
                        with loop.saving():
                            pass
            if evaluate == "epoch":
                evaluate_plainly(loop)


def evaluate_plainly(loop: TrainingLoop) -> None:
    with loop.evaluation() as metrics:
        metrics["eval_loss"] = 1.0


def plain_loop(callbacks: Any = (), **options: Any) -> TrainingLoop:
    model = tiny_model()
    return TrainingLoop(model, torch.optim.AdamW(model.parameters()), callbacks=callbacks, **options)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("evaluate", ["no", "epoch", "steps"])
def test_the_order_of_events_is_the_trainers(tmp_path: Path, accumulation: int, evaluate: str) -> None:
    order, reference = Order(), Order()
    train_plainly(plain_loop([order]), steps=2, accumulation=accumulation, evaluate=evaluate)
    make_trainer(
        tmp_path, [reference], rows=8 * accumulation, max_steps=-1, num_train_epochs=1,
        gradient_accumulation_steps=accumulation, eval_strategy=evaluate, eval_steps=1,
        save_strategy="steps" if evaluate == "steps" else "no", save_steps=1, logging_strategy="no",
    ).train()  # fmt: skip
    events = [event for event in reference.events if event[0] != "prediction_step"]
    assert events.pop(-2) == ("log", 2), "the Trainer's closing line"
    assert order.events == events


@pytest.mark.usefixtures("nothing_frozen")
def test_our_callbacks_work_in_a_plain_loop(tmp_path: Path) -> None:
    capture = Capture()
    callbacks = [
        SimpleGarbageCollector(collect_freq_epoch=2),
        MemoryCallback([Rule(Every(steps=2), [lambda moment, sample: {"mine/epoch": moment.epoch}])], [capture]),
        JsonMemoryLogger(),
        ScheduledGarbageCollector(every_steps=2),
    ]
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    loop = plain_loop(callbacks, args=SimpleNamespace(output_dir=str(tmp_path)))
    train_plainly(loop, epochs=2, steps=3)
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before
    assert capture.series("mine/epoch") == [(2, 2 / 3), (4, 4 / 3), (6, 2.0)]
    assert len(list(tmp_path.rglob("memory.rank0.jsonl"))) == 1
    assert not {**loop.model._forward_hooks, **loop.model._forward_pre_hooks}


def test_each_step_ends_for_the_run_also_where_nothing_is_due() -> None:
    loop = plain_loop([MemoryCallback([Rule(Every(steps=64), [lambda moment, sample: {}])])])
    with loop.train():
        with loop.step():
            pass
        assert getattr(loop._events.run(), "step", None) == 1


def test_phases_are_known_from_hooks() -> None:
    phases = PhaseNotes()
    loop = plain_loop([MemoryCallback([Rule(Every(steps=1), [phases])])])
    train_plainly(loop, steps=2, accumulation=2, evaluate="epoch")
    step = ["data", *["forward", "backward"] * 2, "optimizer"]
    assert phases.seen == ["startup", *step, *step, "data", "evaluate"]


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("error", [RuntimeError("in the step"), KeyboardInterrupt()])
def test_an_exception_passes_and_everything_is_given_back(error: BaseException) -> None:
    before = gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)
    loop = plain_loop([ScheduledGarbageCollector(every_steps=1), MemoryCallback()])
    with pytest.raises(type(error)), loop.train(), loop.epoch(), loop.step():
        raise error
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before
    assert not loop.model._forward_hooks
    train_plainly(loop, steps=1)
    assert loop.state.global_step == 1


def test_other_libraries_callbacks_work_too(tmp_path: Path) -> None:
    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step == 2:
                control.should_training_stop = True
            return control

    loop = plain_loop([Stops], args=TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))
    with loop.train(), loop.epoch():
        while not loop.should_stop:
            with loop.step():
                loop.optimizer.step()
    assert loop.state.global_step == 2
    assert isinstance(loop.pop_callback(Stops), Stops)
    loop.add_callback(EarlyStoppingCallback())
    loop.remove_callback(EarlyStoppingCallback)


def test_the_handler_of_the_document_takes_callbacks_and_plain_epoch_calls() -> None:
    handler, collector = TrainingLoop(), SimpleGarbageCollector(collect_freq_epoch=5)
    handler.add_callback(collector)
    for epoch in range(10):
        handler.on_epoch_end(epoch, {"loss": 1.0})
    handler.on_train_end()
    assert [row["calls"] for row in collector.summary.ledger] == [2]
    assert [entry["loss"] for entry in handler.state.log_history] == [1.0] * 10


@pytest.mark.parametrize(("rank", "local_rank"), [("0", "0"), ("2", "0"), ("3", "1")])
def test_on_several_processes_each_knows_whether_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch, rank: str, local_rank: str
) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", local_rank), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    loop = TrainingLoop(args=SimpleNamespace(output_dir=None))  # or without arguments
    for state in (loop.state, TrainingLoop().state):
        assert (state.is_world_process_zero, state.is_local_process_zero) == (rank == "0", local_rank == "0")
    with loop.train():
        assert loop.state.is_world_process_zero is (rank == "0")


def test_using_a_part_outside_a_training_says_what_to_do() -> None:
    loop = TrainingLoop()
    with pytest.raises(RuntimeError, match=r"put it inside `with loop.train\(\):`"), loop.step():
        pass
    with loop.train(), pytest.raises(RuntimeError, match="a training is running already"), loop.train():
        pass


def test_log_returns_the_line_with_what_our_callbacks_add() -> None:
    loop = TrainingLoop(callbacks=[PeakMemory(strict=True)])
    with loop.train(), loop.epoch():
        with loop.step():
            pass
        line = loop.log({"loss": 1.0})
    assert set(line) == {"loss", "mem_peak_gib", "epoch"}
    assert loop.state.log_history == [{**line, "step": 1}]
