"""The demo's progress bar, on a terminal and elsewhere."""

import io
from types import SimpleNamespace

import pytest
from transformers.trainer_callback import CallbackHandler, PrinterCallback, ProgressCallback

from forgather_mem.demo.progress import DemoProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(progress: DemoProgress) -> None:
    """Three steps as a Trainer tells of them, with one line of losses."""
    state = SimpleNamespace(max_steps=3, global_step=0)
    progress.on_train_begin(None, state, None)
    for step in (1, 2, 3):
        state.global_step = step
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, logs={"loss": "0.125"} if step == 2 else {"lr": 1.0})
    progress.close()


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_terminal_has_a_bar_with_the_last_loss_and_a_file_has_nothing(
    stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    train(DemoProgress())
    written = stream.getvalue()
    assert bool(written) == shown
    assert not shown or ("3/3" in written and "loss 0.12" in written and written.endswith("\n"))


def test_it_takes_the_place_of_what_prints() -> None:
    handler = CallbackHandler([PrinterCallback, ProgressCallback], None, None, None, None)
    trainer = SimpleNamespace(add_callback=handler.add_callback, remove_callback=handler.remove_callback)
    progress = DemoProgress.in_place_of_the_trainers(trainer)
    assert [*handler.callbacks] == [progress]
