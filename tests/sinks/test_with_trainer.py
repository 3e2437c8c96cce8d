"""The TensorBoard sink beside transformers' own TensorBoard callback, in real trainings."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from forgather_mem.sinks import TensorBoardSink
from forgather_mem.telemetry.records import Sample
from tests.events import scalars
from tests.sinks.plain_run import PlainRun
from tests.training import make_trainer


class Recording(TrainerCallback):
    """Writes a number to a sink at every step."""

    def __init__(self, sink: TensorBoardSink) -> None:
        self.sink = sink
        self.folders: list[str | None] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.sink.begin(PlainRun(output_dir=Path(args.output_dir)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        values = {"host/rss_bytes": float(2**30)}
        self.sink.write(Sample(event="step_end", step=state.global_step, epoch=None, time_s=1e9, values=values))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.folders.append(self.sink.folder)
        self.sink.end(PlainRun())


def test_losses_and_memory_are_one_run_also_in_a_second_training(tmp_path: Path) -> None:
    recording = Recording(TensorBoardSink())
    trainer = make_trainer(tmp_path, [recording], report_to=["tensorboard"], max_steps=2, logging_steps=1)
    trainer.train()
    trainer.train()
    # The trainer names its folder by the second: two trainings may have one, or one each
    folders = list(dict.fromkeys(map(str, recording.folders)))
    assert {Path(folder).parent for folder in folders} == {tmp_path / "runs"}
    for tag in ("train/loss", "mem_host/rss_gib"):
        assert [step for folder in folders for step, _ in scalars(Path(folder))[tag]] == [1, 2, 1, 2]
    assert len(list((tmp_path / "runs").rglob("events.mem.*"))) == 2


def test_a_trainer_that_writes_no_events_gets_a_folder_of_the_usual_name(tmp_path: Path) -> None:
    recording = Recording(TensorBoardSink())
    make_trainer(tmp_path, [recording], max_steps=2).train()
    (folder,) = recording.folders
    assert Path(str(folder)).parent == tmp_path / "runs"
    assert [step for step, _ in scalars(Path(str(folder)))["mem_host/rss_gib"]] == [1, 2]
