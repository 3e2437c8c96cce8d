"""What is told early in real trainings. Scripts that fail late are run by benchmarks/late_failures.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from forgather_mem.callbacks import MemoryAlert, MemoryCallback, OOMReporter
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.diagnose.alerts.late import num_batches_of
from forgather_mem.sinks import JsonlSink
from forgather_mem.system.headroom import host_rooms
from forgather_mem.telemetry.records import Moment
from forgather_mem.telemetry.report_schema import read_report
from tests.training import Tokens, make_trainer

NUM_BATCHES = 400


class Predicts(Trainer):
    """Each batch gives so many bytes, which nothing has touched."""

    batch_bytes = 0
    num_predicted = 0

    def prediction_step(self, *arguments: Any, **keywords: Any) -> Any:
        type(self).num_predicted += 1
        return torch.zeros(()), torch.empty(4, self.batch_bytes // 16), torch.zeros(4)


def alerts_of(folder: Path, batch_bytes: int, **arguments: Any) -> list[Alert]:
    """What is told in an evaluation that ends with the first alert, at the latest after twenty batches."""
    alerts: list[Alert] = []

    def ends(alert: Alert) -> None:
        alerts.append(alert)
        raise KeyboardInterrupt

    class ThatMuch(Predicts):
        def prediction_step(self, *given: Any, **keywords: Any) -> Any:
            if type(self).num_predicted == 20:
                raise KeyboardInterrupt
            return super().prediction_step(*given, **keywords)

    ThatMuch.batch_bytes = batch_bytes
    trainer = make_trainer(
        folder,
        [MemoryAlert({}, {}, 60, call=ends), OOMReporter()],  # two that would tell it
        trainer_class=ThatMuch,
        eval_strategy="steps",
        eval_steps=3,
        per_device_eval_batch_size=4,
        **arguments,
    )
    trainer.eval_dataset = Tokens(4 * NUM_BATCHES)
    trainer.compute_metrics = lambda predicted: {}
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return alerts


@pytest.mark.fresh
def test_an_evaluation_that_will_not_fit_is_told_after_its_first_batches(tmp_path: Path) -> None:
    batch_bytes = 8 * host_rooms()[0].free_bytes // NUM_BATCHES
    (alert,) = alerts_of(tmp_path, batch_bytes, eval_do_concat_batches=False)
    assert (alert.name, alert.step) == ("evaluation", 3)
    assert alert.value == pytest.approx((NUM_BATCHES - 16) * batch_bytes, rel=0.02)
    assert "keep only what the metrics need" in alert.text


def test_an_evaluation_that_fits_is_not_told(tmp_path: Path) -> None:
    assert alerts_of(tmp_path, 1 << 20) == []


@pytest.mark.fresh
def test_what_predict_keeps_is_told_without_metrics(tmp_path: Path) -> None:
    alerts: list[Alert] = []

    class AtEnd(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            trainer.predict(Tokens(4 * NUM_BATCHES))

    def ends(alert: Alert) -> None:
        alerts.append(alert)
        raise KeyboardInterrupt

    class ThatMuch(Predicts):
        batch_bytes = 8 * host_rooms()[0].free_bytes // NUM_BATCHES

    trainer = make_trainer(
        tmp_path,
        [MemoryAlert({}, {}, 60, call=ends), AtEnd()],
        trainer_class=ThatMuch,
        per_device_eval_batch_size=4,
        eval_do_concat_batches=False,
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [alert.name for alert in alerts] == ["evaluation"]


@pytest.mark.fresh
def test_an_evaluation_after_the_training_is_told_once_and_is_in_its_report(tmp_path: Path) -> None:
    alerts: list[Alert] = []

    def ends(alert: Alert) -> None:
        alerts.append(alert)
        raise KeyboardInterrupt

    class ThatMuch(Predicts):
        batch_bytes = 1024

    trainer = make_trainer(
        tmp_path,
        [MemoryAlert({}, {}, 60, call=ends), OOMReporter(), MemoryCallback(sinks=[JsonlSink()])],
        trainer_class=ThatMuch,
        per_device_eval_batch_size=4,
        eval_do_concat_batches=False,
    )
    trainer.train()
    trainer.evaluate(Tokens(4 * NUM_BATCHES))
    assert alerts == []
    ThatMuch.batch_bytes = 8 * host_rooms()[0].free_bytes // NUM_BATCHES
    ThatMuch.num_predicted = 0
    with pytest.raises(KeyboardInterrupt):
        trainer.predict(Tokens(4 * NUM_BATCHES))
    assert [alert.name for alert in alerts] == ["evaluation"]
    assert 16 <= ThatMuch.num_predicted <= 20
    (report,) = tmp_path.glob("forgather_mem/*/report.json")
    (told,) = read_report(report)[0].foretold  # type: ignore[union-attr]
    assert "keep only what the metrics need" in told


def test_the_batches_of_a_running_loader_are_found_by_how_many_it_has_given() -> None:
    def moment(**objects: Any) -> Any:
        return Moment("prediction_step", 1, None, None, None, None, objects, None)  # type: ignore[arg-type]

    loader = DataLoader(torch.arange(123), batch_size=1)  # type: ignore[arg-type]
    running: Iterator[Any] = iter(loader)
    for _ in range(77):
        next(running)
    assert num_batches_of(moment(batches_begun=77)) == 123
    assert num_batches_of(moment(batches_begun=99)) is None
    assert num_batches_of(moment(eval_dataloader=loader)) == 123
    assert num_batches_of(moment(num_batches=5)) == 5
    assert num_batches_of(moment(num_batches=float("inf"))) is None
