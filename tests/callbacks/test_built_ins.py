"""What holds for each of the built-in callbacks, and for all of them together."""

import copy
import inspect
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ProgressCallback as TransformersBar

import forgather_mem.callbacks
from forgather_mem import load_callbacks
from forgather_mem.callbacks import GradLogger, JsonLogger, MemoryCallback, TBLogger
from forgather_mem.engine.run_of import run_of
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Every
from tests.callbacks.common import OF_MEMORY, OF_TRAINING, FailsInForward, Steps, all_callbacks, of_training
from tests.events import event_folders, scalars, texts
from tests.memory import open_descriptors
from tests.tokenizer import TextTrainer
from tests.training import fingerprint, make_trainer, patches_in

SETTINGS = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3, "logging_steps": 1}


def every_one(**options: Any) -> list[TrainerCallback]:
    return [*of_training(**options), *all_callbacks(**options)]


def exported() -> dict[str, type[TrainerCallback]]:
    public = {name: getattr(forgather_mem.callbacks, name) for name in forgather_mem.callbacks.__all__}
    return {name: one for name, one in public.items() if isinstance(one, type) and issubclass(one, TrainerCallback)}


def trained(folder: Path, callbacks: list[TrainerCallback], **settings: Any) -> Trainer:
    trainer = make_trainer(folder, callbacks, trainer_class=TextTrainer, **{**SETTINGS, **settings})
    trainer.add_callback(TransformersBar())
    trainer.train()
    return trainer


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGATHER_MEM_STRICT", "1")


class Watcher(TrainerCallback):
    """Notes what the trainer's control says after everybody else has run."""

    def __init__(self) -> None:
        self.controls: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.controls.append(repr(control))


def left_behind(trainer: Trainer) -> dict[str, Any]:
    return {
        "threads": {thread.name for thread in threading.enumerate()} - {"tqdm_monitor"},  # of any bar
        "files": {file for file in open_descriptors() if "tfevents" in file or "trainer_logs" in file},
        "methods": patches_in(trainer),
    }


@pytest.mark.slow
def test_with_all_of_them_a_training_is_bit_identical_and_nothing_is_left(tmp_path: Path) -> None:
    seen = []
    for name, callbacks in (("without", []), ("with", every_one())):
        watcher = Watcher()
        before = {thread.name for thread in threading.enumerate()}
        settings = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "rows": 64}
        trainer = trained(tmp_path / name, [*callbacks, watcher], **settings)
        seen.append((fingerprint(trainer), watcher.controls))
        left = left_behind(trainer)
        assert not left["files"]
        assert not left["methods"]
        assert left["threads"] <= before
    assert seen[0] == seen[1]
    assert len(event_folders(tmp_path / "with")) == 1
    assert {"train-loss", "grad_norm_total", "textgen/time_ms", "mem_host/rss_gib"} <= set(scalars(tmp_path / "with"))
    assert {"generated_text", "grad_flow", "training_info"} <= set(texts(tmp_path / "with"))


class TextsFail(FailsInForward, TextTrainer):
    """As the one, with the other's texts."""


@pytest.mark.slow
def test_a_training_that_breaks_leaves_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    callbacks = every_one()
    trainer = make_trainer(tmp_path / "a", callbacks, trainer_class=TextsFail, **SETTINGS)
    with pytest.raises(RuntimeError, match="forward failed"):
        trainer.train()
    left = left_behind(trainer)
    assert not left["files"]
    assert not left["methods"]
    trained(tmp_path / "b", callbacks)
    assert [step for step, _ in scalars(tmp_path / "b")["train-loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in scalars(tmp_path / "b")["grad_norm_total"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_switched_off_they_do_nothing_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    if way == "environment":
        monkeypatch.setenv("FORGATHER_MEM", "0")
    steps = Steps()
    watching = MemoryCallback([Rule(Every(steps=1), [steps])], enabled=way == "environment")
    trainer = trained(tmp_path, [*every_one(enabled=way == "environment"), watching], save_strategy="no")
    trainer.evaluate()
    assert (steps.steps, run_of(trainer.state)) == ([], None)
    assert "_inner_training_loop" not in vars(trainer)
    assert not list(tmp_path.rglob("*tfevents*"))
    assert not list(tmp_path.rglob("trainer_logs.json"))
    said = capsys.readouterr()
    assert "forgather" not in said.err
    assert "6/6" in said.err  # the Trainer's own bar


def test_each_that_is_exported_is_tried_here_and_has_the_two_common_switches() -> None:
    tried = {type(one).__name__: type(one) for one in every_one()}
    assert tried.keys() == OF_TRAINING.keys() | OF_MEMORY.keys() == exported().keys(), (
        "a row in tests/callbacks/common.py"
    )
    for kind in tried.values():
        for switch, default in (("enabled", True), ("strict", False)):
            parameter = inspect.signature(kind).parameters[switch]
            assert (parameter.default, parameter.kind) == (default, inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.slow
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_each_is_copied_before_and_after_a_training(tmp_path: Path, make_copy: Any) -> None:
    callbacks = [make_copy(one) for one in every_one()]
    trained(tmp_path / "a", callbacks, save_strategy="no", max_steps=2)
    copies = [make_copy(one) for one in callbacks]
    for callback, again in zip(callbacks, copies, strict=True):
        assert type(again) is type(callback)
        assert vars(again).keys() == vars(callback).keys()
    trained(tmp_path / "b", copies, save_strategy="no", max_steps=2)
    assert [step for step, _ in scalars(tmp_path / "b")["mem_host/rss_gib"]] == [1, 2]


def test_parameters_written_for_forgathers_own_build_ours_and_they_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = load_callbacks(
        "forgathers.yaml", searchpath=Path(__file__).parent, folder=str(tmp_path / "out" / "runs" / "x")
    )
    assert {type(callback).__name__ for callback in callbacks} == set(OF_TRAINING)
    trained(tmp_path / "out", callbacks)
    assert [path.parent for path in tmp_path.rglob("trainer_logs.json")] == event_folders(tmp_path)
    assert {"train-loss", "grad_norm_total", "textgen/time_ms"} <= set(scalars(tmp_path))
    assert "step 2/6" in capsys.readouterr().out


def test_the_shipped_template_has_both_loggers_and_a_child_adds_to_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        '-- extends "callbacks/loggers.yaml"\n\n[experiment_info]\n    == super()\n    number: 7\n\n[callback_list]\n'
        "    == super()\n    grad_logger: !singleton:forgather_mem.callbacks:GradLogger\n"
        "        summary_writer: *summary_writer\n        log_frequency: 2\n"
    )
    log, board, gradients = load_callbacks(
        "mine.yaml", searchpath=tmp_path, experiment_name="a: b", logging_dir=str(tmp_path / "here")
    )
    assert (type(log), type(board), type(gradients)) == (JsonLogger, TBLogger, GradLogger)
    assert (board.experiment_info["name"], board.experiment_info["number"]) == ("a: b", 7)
    assert "json_logger: !singleton" in board.experiment_info["config"]
    trained(tmp_path / "out", [log, board, gradients], save_strategy="no")
    assert event_folders(tmp_path) == [tmp_path / "here"]
    assert (tmp_path / "here" / "trainer_logs.json").is_file()
    assert {"train-loss", "grad_norm_total"} <= set(scalars(tmp_path))


def test_every_callback_has_its_section_in_the_docs() -> None:
    docs = Path(__file__).parent.parent.parent / "docs"
    page = (docs / "callback_examples.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (\w+)$", page, re.M))
    assert exported().keys() == sections, (
        "a section `### Name` with YAML, Python and output in docs/callback_examples.md"
    )
    rows = "".join(re.findall(r"^\|.*$", (docs / "callbacks.md").read_text(encoding="utf-8"), re.M))
    assert [name for name in sections if name not in rows] == [], "a row in the table of docs/callbacks.md"
    for name in sections:
        assert f"!singleton:forgather_mem.callbacks:{name}\n" in page
        assert f"{name}(" in page
