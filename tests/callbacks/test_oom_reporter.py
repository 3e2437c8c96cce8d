"""Real errors in every phase of real trainings: allocations that no machine can make."""

import gc
import json
import os
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from forgather_mem import TrainingLoop, attach
from forgather_mem.callbacks import OOMReporter
from forgather_mem.loops.observed import ObservedLoop
from forgather_mem.loops.state import default_arguments
from forgather_mem.units import MIB
from tests.diagnose.oom.test_allocator_snapshot import Recorder
from tests.forked import Forked
from tests.launch.commands import report_in
from tests.reporting.report_fixtures import built, text_of
from tests.simulated_device import TOTAL_MIB, simulated_device
from tests.training import AtStep, make_trainer, tiny_model

pytestmark = pytest.mark.alone(forked=True)  # each failure looks through the heap, of which all tests have more
TOO_MANY = 2**50  # numbers, of four bytes each
PHASES = ("data", "forward", "backward", "optimizer", "evaluate", "save", "generate", "startup")


def too_much(*_: Any, **__: Any) -> Any:
    return torch.empty(TOO_MANY)


class Greedy(Trainer):
    """Asks for too much in one phase, in the third step or after it."""

    phase = ""

    def _when(self, phase: str) -> None:
        if self.phase == phase and self.state.global_step >= 2:
            too_much()

    def get_batch_samples(self, *arguments: Any, **keywords: Any) -> Any:
        self._when("data")
        return super().get_batch_samples(*arguments, **keywords)

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        self._when("forward" if model.training else "evaluate")
        loss = super().compute_loss(model, inputs, *arguments, **keywords)
        if self.phase == "backward" and self.state.global_step >= 2:
            loss.register_hook(too_much)
        return loss

    def _save(self, *arguments: Any, **keywords: Any) -> None:
        self._when("save")
        super()._save(*arguments, **keywords)

    def create_optimizer(self, *arguments: Any, **keywords: Any) -> Any:
        optimizer = super().create_optimizer(*arguments, **keywords)
        if self.phase == "optimizer":
            optimizer.register_step_pre_hook(lambda *_: self._when("optimizer"))
        return optimizer


def failed(folder: Path, phase: str, **arguments: Any) -> dict[str, Any]:
    """The report of a training that runs out of memory in this phase."""

    def generates() -> None:
        trainer.model.lm_head.forward = too_much
        trainer.model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=2, pad_token_id=0)

    reporter = OOMReporter(strict=True)
    between = {"generate": [AtStep(2, generates)], "startup": [AtStep(0, too_much, "train_begin")]}.get(phase, [])
    settings = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3, "max_steps": 6}
    trainer = make_trainer(folder, [reporter, *between], trainer_class=Greedy, **{**settings, **arguments})
    trainer.phase = phase
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        trainer.train()
    return built(reporter.summary)


@pytest.mark.parametrize("phase", PHASES)
def test_phase_step_and_size_are_told_in_every_phase(tmp_path: Path, phase: str) -> None:
    report = failed(tmp_path, phase)
    oom = report["oom"]
    after = {"evaluate": 3, "save": 3, "generate": 2, "startup": 0}
    assert (oom["phase"], oom["step"]) == (phase, after.get(phase, 3))
    assert (oom["where"], oom["rank"], oom["requested_bytes"]) == ("host", 0, 4 * TOO_MANY)
    assert report["run"]["end"] == "oom"
    assert report["steps"] == after.get(phase, 2)
    assert 0 < sum(oom["in_use"].values()) <= oom["limit_bytes"] + 64 * MIB
    assert oom["advice"] == [entry["text"] for entry in report["advice"]]
    json.dumps(report, allow_nan=False)
    text = text_of(report).splitlines()
    assert len(text) <= 25
    assert max(map(len, text)) <= 80
    step = f"step {oom['step']}, " if oom["step"] else ""
    assert text[1].startswith(f"OUT OF MEMORY   host, {step}{phase}")


class Elsewhere(Trainer):
    """Asks for too much outside all phases, in the sixth step or after it."""

    place = ""

    def training_step(self, *arguments: Any, **keywords: Any) -> Any:
        if self.place == "training_step" and self.state.global_step == 5:
            too_much()
        loss = super().training_step(*arguments, **keywords)
        if self.place == "after training_step" and self.state.global_step == 5:
            too_much()
        return loss

    def create_scheduler(self, *arguments: Any, **keywords: Any) -> Any:
        scheduler = super().create_scheduler(*arguments, **keywords)
        if self.place == "scheduler":
            step = scheduler.step
            scheduler.step = lambda *given: too_much() if self.state.global_step == 5 else step(*given)
        return scheduler


INSIDE = (
    "training_step", "after training_step", "scheduler", "step_begin", "substep_end", "pre_optimizer_step",
    "optimizer_step",
)  # fmt: skip
AFTER = ("step_end", "evaluate", "epoch_end", "epoch_begin")


@pytest.mark.parametrize(
    ("place", "first"), [*((place, True) for place in INSIDE), *((place, n == 0) for place in AFTER for n in (0, 1))]
)
def test_what_fails_outside_all_phases_fails_in_its_own_step(tmp_path: Path, place: str, first: bool) -> None:
    reporter = OOMReporter(strict=True)
    fails = AtStep(5 if place in INSIDE else 6, too_much, place)
    callbacks = [fails, reporter] if first else [reporter, fails]
    trainer = make_trainer(
        tmp_path, callbacks, trainer_class=Elsewhere, rows=48, max_steps=12,
        gradient_accumulation_steps=2, per_device_train_batch_size=4, logging_steps=3, eval_strategy="steps",
        eval_steps=3,
    )  # fmt: skip
    trainer.place = place
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        trainer.train()
    report = built(reporter.summary)
    assert (report["oom"]["step"], report["steps"]) == (6, 5 if place in INSIDE else 6)
    at = "after step 6, between steps" if report["oom"]["phase"] == "other" and place not in INSIDE else "step 6"
    assert f"OUT OF MEMORY   host, {at}" in text_of(report)


@pytest.mark.slow
def test_what_was_read_before_the_failure_explains_it(tmp_path: Path) -> None:
    oom = failed(tmp_path, "forward")["oom"]
    assert oom["batch"] == {"rows": 4, "length": 16}
    assert oom["why_now"].endswith("asks for 4,096.0 TiB at once."), "all batches are alike"
    assert failed(tmp_path, "evaluate")["oom"]["why_now"].startswith("the first evaluation, at tests/callbacks/")
    first = failed(tmp_path, "optimizer", max_steps=6)
    assert first["oom"]["why_now"].endswith("at once."), "it is the third step"


class Collator:
    """One batch is longer than the others; and too long for the layer that gets it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        self.count += 1
        length = 16 if self.count != 4 else 40
        ids = torch.stack([row["input_ids"] for row in rows]).repeat(1, 3)[:, :length]
        return {"input_ids": ids, "labels": ids}


def test_the_longest_batch_and_the_layer_are_named(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    trainer = make_trainer(tmp_path, [reporter])
    trainer.data_collator = Collator()
    projection = trainer.model.model.layers[0].mlp.up_proj
    projection.register_forward_hook(lambda module, inputs, output: too_much() if output.shape[1] > 16 else None)
    with pytest.raises(RuntimeError):
        trainer.train()
    oom = built(reporter.summary)["oom"]
    assert oom["layer"] == "model.layers.0.mlp.up_proj"
    assert (oom["step"], oom["batch"]) == (4, {"rows": 4, "length": 40})
    assert oom["why_now"].startswith("the longest batch so far, 4 x 40 tokens; until then at most 4 x 16.")


def test_the_settings_have_the_shapes_of_the_largest_batch(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    trainer = make_trainer(tmp_path, [reporter])
    trainer.data_collator = Collator()
    trainer.train()
    settings = built(reporter.summary)["run"]["settings"]
    assert (settings["batch.length"], settings["batch.sizes"]) == ("40", "input_ids=4x40 labels=4x40")


def test_another_error_is_no_story(tmp_path: Path) -> None:
    reporter = OOMReporter(strict=True)
    trainer = make_trainer(tmp_path, [reporter], trainer_class=Greedy)
    trainer.compute_loss = lambda *_, **__: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    report = built(reporter.summary)
    assert (report["oom"], report["run"]["end"]) == (None, "exception")


def test_the_error_is_the_users_and_nothing_of_it_is_held(tmp_path: Path) -> None:
    class Batch(torch.Tensor):
        pass

    held: list[Any] = []

    class Keeps(Greedy):
        def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
            mine = torch.zeros(3).as_subclass(Batch)
            held.append(weakref.ref(mine))
            return too_much(mine)

    traces = []
    for callbacks in ([], [OOMReporter(strict=True)]):
        trainer = make_trainer(tmp_path, callbacks, trainer_class=Keeps)
        try:
            trainer.train()
        except RuntimeError as error:
            trace, lines = error.__traceback__, []
            while trace is not None:
                lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
                trace = trace.tb_next
            traces.append((str(error), lines[1:]))
            del trace
    assert traces[0] == traces[1]
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_attached_the_next_training_begins_anew(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainer_class=Greedy)
    handle = attach(trainer)
    trainer.phase = "forward"
    with pytest.raises(RuntimeError):
        trainer.train()
    assert handle.report()["oom"]["phase"] == "forward"
    assert report_in(tmp_path)["oom"]["phase"] == "forward"
    trainer.phase = ""
    trainer.train()
    assert handle.report()["oom"] is None


def loop_that_fails(at: str, reporter: OOMReporter) -> None:
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters())
    loop = TrainingLoop(model, optimizer, callbacks=[reporter])
    ids = torch.ones(2, 8, dtype=torch.long)
    with loop.train(), loop.epoch():
        for step in range(3):
            with loop.step():
                if at == "forward" and step == 2:
                    model.lm_head.forward = too_much
                loss = model(input_ids=ids, labels=ids).loss
                if at == "loss" and step == 2:
                    too_much()
                if at == "backward" and step == 2:
                    loss.register_hook(too_much)
                loss.backward()
                if at == "after backward" and step == 2:
                    too_much()
                if at == "optimizer" and step == 2:
                    optimizer.register_step_pre_hook(too_much)
                optimizer.step()
                optimizer.zero_grad()
        if at == "evaluate":
            with loop.evaluation():
                too_much()
        if at == "save":
            with loop.saving():
                too_much()


@pytest.mark.parametrize("at", ["forward", "loss", "backward", "after backward", "optimizer", "evaluate", "save"])
def test_a_loop_of_ones_own_is_told_of_too(at: str) -> None:
    reporter, phase = OOMReporter(strict=True), {"loss": "forward", "after backward": "backward"}.get(at, at)
    with pytest.raises(RuntimeError):
        loop_that_fails(at, reporter)
    oom = built(reporter.summary)["oom"]
    assert (oom["phase"], oom["step"]) == (phase, 3)
    assert oom["layer"] == ("lm_head" if at == "forward" else None)
    if phase == "evaluate":  # nobody counts its batches
        assert oom["why_now"].startswith("the first evaluation, at tests/callbacks/")
    if phase in ("forward", "backward", "optimizer"):
        assert oom["batch"] == {"rows": 2, "length": 8}


@pytest.mark.parametrize(("steps", "told"), [(3, ("evaluate", 3)), (0, ("forward", 1))])
def test_an_evaluation_with_gradients_belongs_to_the_step_before_it(steps: int, told: tuple[str, int]) -> None:
    """Its passes look like those of the next step to who hears of a loop only by its passes and its optimizer.

    A loop that has made no step begins only to explain the error: what there was before it is not known.
    """
    reporter, model = OOMReporter(strict=True), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    loop = ObservedLoop(default_arguments(), lambda: [reporter])
    loop.listen()
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    model.train(not steps)
    model.forward = too_much  # type: ignore[method-assign]
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(2, 8))
    loop.close(raised.value)
    oom = built(reporter.summary)["oom"]
    assert (oom["phase"], oom["step"]) == told
    assert steps or "there before the first step" not in oom["in_use"]


@pytest.mark.slow
def test_the_text_follows_the_traceback_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import sys
from pathlib import Path
from tests.callbacks.test_oom_reporter import Greedy, make_trainer
from forgather_mem.callbacks import OOMReporter
trainer = make_trainer(Path("out"), [OOMReporter()], trainer_class=Greedy)
trainer.phase = "forward"
try:
    trainer.train()
except RuntimeError:
    print("caught", file=sys.stderr, flush=True)
trainer.train()
""")
    code, _, said = Forked(tmp_path / "script.py", [], tmp_path, os.environ).wait()
    assert code == 1
    before, _, after = said.partition("Traceback (most recent call last)")
    assert before.endswith("caught\n"), "an error that is caught is the script's own business"
    error, _, text = after.partition("\n== forgather-mem == ")
    assert "DefaultCPUAllocator" in error.splitlines()[-1]
    assert "OUT OF MEMORY   host, step 3, forward" in text


# ---- a device ----


def on_device(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[pytest.MonkeyPatch], None], **arguments: Any
) -> dict[str, Any]:
    with simulated_device(monkeypatch) as device:
        prepare(monkeypatch)
        device.hold(1024)
        reporter = OOMReporter(strict=True, **arguments)
        trainer = make_trainer(folder, [reporter], trainer_class=Greedy)

        def fails(*_: Any, **__: Any) -> None:
            device.hold(4096)
            device.reserved = 5120
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which "
                "1.00 GiB is free. Process 77 has 1.50 GiB memory in use. Including non-PyTorch memory, this process "
                "has 5.50 GiB memory in use. Of the allocated memory 4.00 GiB is allocated by PyTorch, and 1.00 GiB "
                "is reserved by PyTorch but unallocated."
            )

        trainer.compute_loss = fails
        with pytest.raises(torch.OutOfMemoryError):
            trainer.train()
        return built(reporter.summary)


def test_a_devices_numbers_are_the_errors_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oom = on_device(tmp_path, monkeypatch, lambda _: None)["oom"]
    assert (oom["where"], oom["phase"]) == ("device", "forward")
    assert oom["requested_bytes"] == 2048 * MIB
    assert oom["limit_bytes"] == TOTAL_MIB * MIB
    assert oom["reserved_unused_bytes"] == 1024 * MIB
    assert oom["in_use"] == {
        "activations": 4096 * MIB, "kept by the allocator": 1024 * MIB, "CUDA and libraries": 512 * MIB,
    }  # fmt: skip
    assert oom["others_bytes"] == 1536 * MIB
    assert oom["why_now"] == "other processes have 1.5 GiB of this device."
    assert oom["not_because"] == ["Not fragmentation (1.0 GiB kept unused)"]


def test_free_blocks_of_private_pools_were_not_free_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_graphs(patch: pytest.MonkeyPatch) -> None:
        pool = {"device": 0, "segment_pool_id": (0, 1), "total_size": 700 * MIB, "allocated_size": 100 * MIB}
        patch.setattr(torch.cuda, "memory_snapshot", lambda include_traces=True: [pool])

    without = on_device(tmp_path / "without", monkeypatch, lambda _: None)["oom"]["free_bytes"]
    assert on_device(tmp_path / "with", monkeypatch, with_graphs)["oom"]["free_bytes"] == without - 600 * MIB


def test_a_snapshot_is_recorded_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(3)
    report = on_device(tmp_path, monkeypatch, recorder.patch, snapshot=True)
    with open(report["oom"]["snapshot"], "rb") as file:
        assert pickle.load(file) == {"segments": [b"x" * 1000] * 3}
    assert recorder.calls == [("all", {"max_entries": 100_000, "stacks": "python"}), (None, {})]
