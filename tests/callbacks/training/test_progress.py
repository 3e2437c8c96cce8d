"""What a person sees of a training: bars or lines, and only one set of them."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_callback import ProgressCallback as TransformersBar

from forgather_mem.callbacks import ProgressCallback
from tests.training import AtStep, make_trainer

EVALUATES = {"eval_strategy": "steps", "eval_steps": 3}
STAMP = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bars_in(text: str, what: str) -> list[str]:
    return [line for line in re.split(r"[\r\n]", text) if line.lstrip().startswith(f"{what}:")]


def test_a_terminal_gets_bars_for_training_and_evaluation_with_the_metrics(tmp_path: Path) -> None:
    screen = Terminal()
    make_trainer(tmp_path, [ProgressCallback(output_stream=screen)], **EVALUATES).train()
    train = bars_in(screen.getvalue(), "train")
    assert "0/6" in train[0]
    assert "6/6" in train[-1]
    assert any("loss " in bar and "learning_rate" in bar for bar in train)
    assert any(re.search(r"eval_loss [34]\.", bar) for bar in train)
    assert any("/1 " in bar for bar in bars_in(screen.getvalue(), "eval"))
    assert len(re.findall(STAMP + r"step \d/6  epoch 0\.\d\d  loss [34]\.", screen.getvalue())) == 3
    assert len(re.findall(STAMP + r"step \d/6  epoch 0\.\d\d  eval_loss [34]\.", screen.getvalue())) == 2


def test_without_a_terminal_lines_with_the_time_say_the_same(tmp_path: Path) -> None:
    stream = io.StringIO()
    trainer = make_trainer(tmp_path, [ProgressCallback(output_stream=stream)], **EVALUATES)
    trainer.train()
    lines = stream.getvalue().splitlines()
    assert all(re.match(STAMP + r"step \d/6  epoch 0\.\d\d  ", line) for line in lines)
    assert [re.search(r"step (\d)/6 .*?(\w+) [\d.e-]+", line).groups()[0] for line in lines] == list("234666")
    entry = trainer.state.log_history[0]
    assert f"loss {entry['loss']:.4g}  grad_norm {entry['grad_norm']:.4g}" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [None, "stderr", "stdout"])
def test_where_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str], stream: str | None) -> None:
    make_trainer(tmp_path, [ProgressCallback(False, stream)]).train()
    said = capsys.readouterr()
    shown, other = (said.out, said.err) if stream == "stdout" else (said.err, said.out)
    assert "step 2/6" in shown
    assert "step 2/6" not in other


@pytest.mark.slow
def test_the_trainers_disable_tqdm_means_lines_unless_we_are_told_otherwise(tmp_path: Path) -> None:
    for use_tqdm, bars in ((None, False), (True, True)):
        screen = Terminal()
        make_trainer(tmp_path, [ProgressCallback(use_tqdm, screen)], disable_tqdm=True).train()
        assert bool(bars_in(screen.getvalue(), "train")) is bars
        assert "step 2/6" in screen.getvalue()


def with_own_display(folder: Path, own: TrainerCallback, callbacks: Any = (), **settings: Any) -> Trainer:
    trainer = make_trainer(folder, callbacks, **settings)
    trainer.add_callback(own)  # behind the user's, as the Trainer does it
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before the Trainer's own", "behind the Trainer's own"])
@pytest.mark.parametrize("ending", ["normal", "exception"])
def test_it_takes_the_place_of_the_trainers_own_bar_for_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str, ending: str
) -> None:
    stream, own = io.StringIO(), TransformersBar()
    ours = ProgressCallback(output_stream=stream)
    trainer = with_own_display(tmp_path, own, [ours] if order.startswith("before") else [], **EVALUATES)
    if order.startswith("behind"):
        trainer.add_callback(ours)
    if ending == "exception":
        trainer.add_callback(AtStep(4, RuntimeError("stop")))
        with pytest.raises(RuntimeError, match="stop"):
            trainer.train()
    else:
        trainer.train()
    assert "step 2/6" in stream.getvalue()
    said = capsys.readouterr()
    assert "'loss'" not in said.out + said.err
    assert "/6" not in said.err.replace("0/6", "")  # a bar that had begun is taken away
    assert not [name for name in vars(own) if name.startswith("on_")]

    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(AtStep)
    trainer.train()
    said = capsys.readouterr()
    assert "'loss'" in said.out + said.err
    assert "6/6" in said.err
    assert own.training_bar is None


@pytest.mark.slow
def test_it_takes_the_place_of_the_printer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = with_own_display(tmp_path, PrinterCallback(), [ProgressCallback()], disable_tqdm=True)
    trainer.train()
    said = capsys.readouterr()
    assert "'loss'" not in said.out
    assert "step 2/6" in said.err
    trainer.evaluate()
    assert "'eval_loss'" in capsys.readouterr().out


class UsersBar(TransformersBar):
    pass


class NotebookProgressCallback(TrainerCallback):
    """Stands for the one of transformers, which needs a notebook."""


@pytest.mark.slow
@pytest.mark.parametrize("own", [UsersBar, NotebookProgressCallback])
def test_beside_a_bar_that_must_stay_it_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: type[TrainerCallback]
) -> None:
    stream = io.StringIO()
    with_own_display(tmp_path, own(), [ProgressCallback(output_stream=stream)], **EVALUATES).train()
    assert not stream.getvalue()
    assert ("6/6" in capsys.readouterr().err) is (own is UsersBar)


def test_an_evaluation_outside_a_training_is_shown_unless_the_trainer_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    trainer = make_trainer(tmp_path, [ProgressCallback(output_stream=screen)], per_device_eval_batch_size=2)
    trainer.evaluate()
    assert "0/4" in bars_in(screen.getvalue(), "eval")[0]
    assert re.search(r"eval_loss [34]\.", screen.getvalue())
    trainer.predict(trainer.eval_dataset)
    before = screen.getvalue()
    trainer.add_callback(TransformersBar())
    trainer.evaluate()
    assert screen.getvalue() == before
    assert "4/4" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD:UserWarning")
def test_a_resumed_training_begins_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # transformers 4.46 reads its checkpoints no other way
    settings = {"save_strategy": "steps", "save_steps": 4}
    make_trainer(tmp_path, **settings).train()
    screen = Terminal()
    trainer = make_trainer(tmp_path, [ProgressCallback(output_stream=screen)], **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    train = bars_in(screen.getvalue(), "train")
    assert "4/6" in train[0]
    assert "6/6" in train[-1]


@pytest.mark.slow
def test_a_stream_that_breaks_costs_the_display_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("FORGATHER_MEM_STRICT")
    stream = io.StringIO()
    stream.close()
    trainer = make_trainer(tmp_path, [ProgressCallback(False, stream)], logging_steps=1)
    trainer.train()
    assert trainer.state.global_step == 6
    assert len([record for record in caplog.records if "failed" in record.message]) == 1
