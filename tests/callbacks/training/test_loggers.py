"""The page of a training, read back with TensorBoard's own reader and compared with the Trainer's log history."""

import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import TBLogger, TBMemoryLogger
from tests.events import event_folders, scalars, texts
from tests.training import AtStep, make_trainer

EVALUATES = {"eval_strategy": "steps", "eval_steps": 3}


def logged(trainer: Trainer, key: str) -> list[tuple[int, float]]:
    return [(entry["step"], pytest.approx(entry[key])) for entry in trainer.state.log_history if key in entry]


def test_losses_rates_norms_and_perplexities_stand_under_forgathers_tags(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [TBLogger()], **EVALUATES)
    trainer.train()
    found = scalars(tmp_path)
    assert found["train-loss"] == logged(trainer, "loss")
    assert found["learning-rate"] == logged(trainer, "learning_rate")
    assert found["grad-norm"] == logged(trainer, "grad_norm")
    assert found["eval-loss"] == logged(trainer, "eval_loss")
    assert [step for step, _ in found["eval-loss"]] == [3, 6]
    for loss, derived in (("train-loss", "train-perplexity"), ("eval-loss", "eval-perplexity")):
        assert found[derived] == [(step, pytest.approx(math.exp(value), rel=1e-5)) for step, value in found[loss]]
    assert found["train_loss"] == logged(trainer, "train_loss")  # what has no tag of its own
    assert found["eval_runtime"] == logged(trainer, "eval_runtime")


class LogsOwn(TrainerCallback):
    def __init__(self, logs: list[dict[str, Any]]) -> None:
        self.logs = logs

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.log = kwargs["model"].log_of_trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step <= len(self.logs):
            self.log(dict(self.logs[state.global_step - 1]))


def trained_with_logs(folder: Path, callback: TBLogger, logs: list[dict[str, Any]]) -> Trainer:
    trainer = make_trainer(folder, [callback, LogsOwn(logs)], logging_strategy="no", max_steps=4)
    trainer.model.log_of_trainer = trainer.log
    trainer.train()
    return trainer


def test_zero_is_a_value_and_so_is_not_a_number(tmp_path: Path) -> None:
    logs = [{"eval_accuracy": 0.0, "learning_rate": 0}, {"loss": math.nan}, {"loss": 1e6, "note": "x", "flag": True}]
    trained_with_logs(tmp_path, TBLogger(), logs)
    found = scalars(tmp_path)
    assert found["eval-accuracy"] == [(1, 0.0)]
    assert found["learning-rate"] == [(1, 0.0)]
    assert math.isnan(found["train-loss"][0][1])
    assert found["train-perplexity"][1] == (3, math.inf)
    assert "note" not in found
    assert "flag" not in found


def half(value: float, logs: Any) -> float | None:
    return value / 2 if logs.get("wanted", True) else None


def test_scalars_of_ones_own_and_only_these(tmp_path: Path) -> None:
    callback = TBLogger(None, [["loss", "my-loss"], ["loss", "half", half]])
    trained_with_logs(tmp_path, callback, [{"loss": 4.0}, {"loss": 2.0, "wanted": False}, {"other": 1.0}])
    found = scalars(tmp_path)
    assert found["my-loss"] == [(1, 4.0), (2, 2.0)]
    assert found["half"] == [(1, 2.0)]
    assert set(found) == {"my-loss", "half"}


def test_a_function_that_fails_costs_its_own_scalar_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORGATHER_MEM_STRICT")
    callback = TBLogger(None, [["loss", "broken", lambda value, logs: 1 / 0], ["loss", "my-loss"]])
    with caplog.at_level(logging.WARNING):
        trained_with_logs(tmp_path, callback, [{"loss": 1.0}] * 4)
    assert [step for step, _ in scalars(tmp_path)["my-loss"]] == [1, 2, 3, 4]
    assert len([record for record in caplog.records if "'broken' failed" in record.message]) == 1


def test_configuration_experiment_and_results_are_texts(tmp_path: Path) -> None:
    config = "a: 1\nb:\n  - |x|\n"
    make_trainer(tmp_path, [TBLogger(name="My | Experiment", config=config)], learning_rate=3e-4).train()
    found = texts(tmp_path)
    assert "| name | My \\| Experiment |" in found["experiment"][0][1]
    assert "    a: 1\n    b:\n      - |x|" in found["experiment"][0][1]
    info = found["training_info"][0][1]
    assert "| learning_rate | 0.0003 |" in info
    assert "| class | LlamaForCausalLM |" in info
    assert '      "hidden_size": 16' in info
    assert "| train_loss | " in found["train_results"][0][1]


def hparams_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in folder.rglob("*tfevents*"):
        reader = EventAccumulator(str(path)).Reload()
        for tag in ("_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"):
            try:
                content = reader.SummaryMetadata(tag).plugin_data.content
            except KeyError:
                continue
            found[tag.removeprefix("_hparams_/")] = plugin_data_pb2.HParamsPluginData.FromString(content)
    return found


def test_runs_are_compared_by_hyperparameters_and_metrics_of_the_same_run(tmp_path: Path) -> None:
    for name, rate in (("a", 1e-3), ("b", 1e-4)):
        make_trainer(tmp_path / name, [TBLogger(name=name, seed_of_data=3)], learning_rate=rate).train()
        assert len(event_folders(tmp_path / name)) == 1
        found = hparams_of(tmp_path / name)
        values = found["session_start_info"].session_start_info.hparams
        assert values["learning_rate"].number_value == rate
        assert values["name"].string_value == name
        assert values["seed_of_data"].number_value == 3
        metrics = {info.name.tag for info in found["experiment"].experiment.metric_infos}
        assert {"train-loss", "eval-loss", "eval-perplexity"} <= metrics
        assert "train-loss" in scalars(tmp_path / name)
        assert found["session_end_info"].session_end_info.end_time_secs > 0


def test_a_run_that_broke_keeps_its_points_and_is_not_shown_as_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        make_trainer(tmp_path, [TBLogger(), AtStep(5, RuntimeError("stop"))]).train()
    assert [step for step, _ in scalars(tmp_path)["train-loss"]] == [2, 4]
    assert "session_end_info" not in hparams_of(tmp_path)


def test_an_evaluation_after_the_training_stands_in_its_run_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [TBLogger()])
    trainer.train()
    trainer.evaluate()
    trainer.evaluate()
    assert len(event_folders(tmp_path)) == 1
    assert scalars(tmp_path)["eval-loss"] == logged(trainer, "eval_loss")[:1]


def test_with_the_trainers_own_page_and_our_memory_it_is_one_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, [TBMemoryLogger(), TBLogger()], report_to=["tensorboard"]).train()
    assert len(event_folders(tmp_path)) == 1
    assert {"train/loss", "train-loss", "mem_host/rss_gib"} <= set(scalars(tmp_path))


def test_a_writer_that_is_handed_in_is_used_flushed_and_stays_open(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path / "mine"), max_queue=1000)
    callback = TBLogger(writer, name="x")
    for name in ("a", "b"):
        make_trainer(tmp_path / name, [callback]).train()
    assert [step for step, _ in scalars(tmp_path)["train-loss"]] == [2, 4, 6, 2, 4, 6]
    writer.add_scalar("train-loss", 1.0, 8)
    writer.close()
    assert [step for step, _ in scalars(tmp_path)["train-loss"]][-1] == 8
    assert {"experiment", "training_info", "train_results"} <= set(texts(tmp_path))
    assert not list((tmp_path / "a").rglob("*tfevents*"))


def test_a_copy_from_a_pickle_logs_into_the_folder_that_was_named(tmp_path: Path) -> None:
    callback = TBLogger(scalars=[("loss", "half", half)], logging_dir=tmp_path / "here", name="x")
    for copy in (callback, pickle.loads(pickle.dumps(callback))):
        make_trainer(tmp_path / "out", [copy]).train()
    assert event_folders(tmp_path) == [tmp_path / "here"]
    assert [step for step, _ in scalars(tmp_path)["half"]] == [2, 4, 6, 2, 4, 6]


@pytest.mark.parametrize(
    "scalar", ["loss", ["loss"], ["loss", ""], ["loss", "tag", "not callable"], [1, "tag"], ["a", "b", half, 4]]
)
def test_scalars_of_another_form_are_refused(scalar: Any) -> None:
    with pytest.raises(ValueError, match=r"each is \(key, tag\) or \(key, tag, function\)"):
        TBLogger(scalars=[scalar])


def test_a_writer_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        TBLogger(object(), logging_dir=tmp_path)


def test_another_callback_of_this_name_is_told_at_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = type("TBLogger", (TrainerCallback,), {})
    make_trainer(tmp_path / "alone", [TBLogger()]).train()
    assert "Two callbacks" not in "".join(capsys.readouterr())
    make_trainer(tmp_path / "both", [TBLogger(), theirs()]).train()
    assert "Two callbacks called TBLogger" in "".join(capsys.readouterr())
