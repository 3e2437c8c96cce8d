"""A callback's own tags on a run's page, read back with TensorBoard's own reader."""

import os
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from forgather_mem.sinks.event_page import EventPage
from tests.events import scalars, texts


def test_numbers_and_texts_stand_at_their_steps_and_nothing_is_opened_before(tmp_path: Path) -> None:
    page = EventPage(None, str(tmp_path / "run"))
    page.scalars({}, 1)
    page.finished()
    assert not (tmp_path / "run").exists()
    for step in (1, 2):
        page.scalars({"grad/norm": step * 0.5, "grad/max": step}, step)
    page.text("config", "| a |\n|---|", 2)
    page.close()
    assert scalars(tmp_path / "run") == {"grad/norm": [(1, 0.5), (2, 1.0)], "grad/max": [(1, 1.0), (2, 2.0)]}
    assert texts(tmp_path / "run")["config"] == [(2, "| a |\n|---|")]
    page.scalars({"grad/norm": 9}, 9)
    page.close()
    assert len(os.listdir(tmp_path / "run")) == 2, "what is written after a close has a file of its own"


def test_very_many_sets_of_tags_are_all_written(tmp_path: Path) -> None:
    page = EventPage(None, str(tmp_path))
    for number in range(200):
        page.scalars({f"a/{number % 100}": number}, number)
    page.close()
    assert scalars(tmp_path) == {f"a/{n}": [(n, float(n)), (n + 100, n + 100.0)] for n in range(100)}


def test_a_writer_that_was_handed_in_is_flushed_and_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path), max_queue=1000, flush_secs=1000) as writer:
        page = EventPage(writer, "unused")
        page.scalars({"a": 1.0}, 1)
        page.close()
        assert scalars(tmp_path) == {"a": [(1, 1.0)]}
        writer.add_scalar("b", 2.0, 1)
    assert set(scalars(tmp_path)) == {"a", "b"}
    assert not Path("unused").exists()


def test_hyperparameters_are_shown_until_they_are_marked_as_finished_once(tmp_path: Path) -> None:
    page = EventPage(None, str(tmp_path))
    page.hparams({"lr": 0.1, "name": "adam"}, ["mem_host/rss_peak_gib"])
    page.finished()
    (file,) = tmp_path.iterdir()
    size = file.stat().st_size
    page.finished()
    page.close()
    assert file.stat().st_size == size
    reader = EventAccumulator(str(tmp_path)).Reload()
    found = reader.summary_metadata
    assert {"_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"} == set(found)
