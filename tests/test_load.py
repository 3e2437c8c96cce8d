"""One line to a watched training: `load_callbacks` and `attach`."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem import attach, load_callbacks, watch
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.errors import TemplateError
from forgather_mem.launch.watching import callbacks_of_run
from forgather_mem.load import WATCH
from forgather_mem.telemetry import run_session
from tests.programs import no_collections
from tests.training import fingerprint, make_trainer, ours_in


def methods(trainer: Any) -> list[str]:
    return ours_in(trainer, trainer.callback_handler, trainer.accelerator)


def test_an_attached_trainer_reports_and_trains_as_alone(tmp_path: Path) -> None:
    alone = make_trainer(tmp_path / "alone", logging_steps=1)
    alone.train()
    trainer = make_trainer(tmp_path / "watched", logging_steps=1)
    handle = attach(trainer)
    with pytest.raises(RuntimeError, match="no training has begun since attach"):
        handle.report()
    trainer.train()
    assert fingerprint(trainer) == fingerprint(alone)
    report = handle.report()
    assert report["steps"] == 6
    assert report["run"]["end"] == "finished"
    assert 2**26 < report["host"]["rss_peak_bytes"] <= report["host"]["limit_bytes"]
    assert report["run"]["event_folder"].startswith(str(tmp_path / "watched"))
    assert json.loads(json.dumps(report)) == report
    text = str(report)
    assert "6 steps" in text
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80


def test_detach_takes_everything_back(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = methods(trainer), list(trainer.callback_handler.callbacks)
    handle = attach(trainer)
    assert (methods(trainer), list(trainer.callback_handler.callbacks)) != before
    handle.detach()
    assert (methods(trainer), list(trainer.callback_handler.callbacks)) == before
    handle.detach()
    trainer.train()


def test_two_handles_of_one_trainer_are_detached_one_by_one(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = methods(trainer)
    first, second = attach(trainer), attach(trainer, "callbacks/memory.yaml", every_steps=2)
    first.detach()
    trainer.train()
    assert second.report()["steps"] == 6
    second.detach()
    assert methods(trainer) == before


def test_attached_twice_the_same_handle_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path)
    before = methods(trainer), len(trainer.callback_handler.callbacks)
    handle = attach(trainer)
    assert attach(trainer) is handle
    assert len(trainer.callback_handler.callbacks) == before[1] + 3
    assert not [record for record in caplog.records if record.name.startswith("forgather_mem")]
    assert attach(trainer, logging_dir="elsewhere") is handle
    assert "detach() it to change its options" in caplog.text
    handle.detach()
    assert (methods(trainer), len(trainer.callback_handler.callbacks)) == before
    assert attach(trainer) is not handle


def test_a_handle_does_not_keep_the_trainer_alive(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    handle = attach(trainer)
    trainer.train()
    alive = weakref.ref(trainer)
    with no_collections():
        del trainer
        assert alive() is None
    assert handle.report()["steps"] == 6


def test_attach_refuses_what_is_no_trainer() -> None:
    with pytest.raises(
        TypeError, match="this object has no method add_callback, so it is no Trainer; Lightning's Trainer takes"
    ):
        attach(object())


def test_a_misspelt_variable_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    load_callbacks("callbacks/memory.yaml", every_steps=3)
    assert not caplog.records
    load_callbacks("callbacks/memory.yaml", every_step=3)
    assert "no template uses the variable 'every_step'" in caplog.text
    assert "did you mean 'every_steps'?" in caplog.text


def test_a_key_given_twice_is_told_and_a_null_beside_the_list_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "twice.yaml").write_text("trainer_callbacks: !dlist\n    a: null\n    a: null\n")
    assert load_callbacks(tmp_path / "twice.yaml") == []
    assert caplog.messages[0].startswith("twice.yaml:3:5: 'a' is redeclared, first at twice.yaml:2:5")
    (tmp_path / "beside.yaml").write_text(
        "-- extends 'callbacks/memory.yaml'\n[callback_list]\n    == super()\ngc: null\n"
    )
    with pytest.raises(TemplateError, match="'gc' is a target of its own here"):
        load_callbacks(tmp_path / "beside.yaml")


def test_a_loop_that_is_not_watched_may_tell_what_it_likes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGATHER_MEM", "0")
    watching = watch(output_dir=tmp_path)
    watching.step()
    with watching.phase("save"):
        pass
    assert watching.report()["steps"] == 0
    assert list(tmp_path.iterdir()) == []


NOTHING_HEARD = "forgather-mem: no training step was seen in this process: put watch() where the steps are made"


def test_a_block_in_which_no_step_is_heard_says_so_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with watch(output_dir=tmp_path) as watching:
        model(torch.ones(2, 8)).sum().backward()
    watching.close()
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n"), repr(watching)[:11]) == ("", 1, "a watched l")
    assert printed.err.startswith(NOTHING_HEARD)
    with watch(output_dir=tmp_path):
        optimizer.step()
        with watch(output_dir=tmp_path) as inner:
            with pytest.raises(RuntimeError, match="has seen no step"):
                inner.report()
            optimizer.step()
        assert capsys.readouterr().err.startswith(
            "forgather-mem: these steps are of a training that is watched already"
        )
        assert "No verdict on leaks: the training has not ended." in " ".join(str(inner.report()).split())
    assert "== 2 steps in " in (told := capsys.readouterr().err)
    assert NOTHING_HEARD not in told


def test_a_block_without_a_step_is_silent_where_something_else_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with watch(output_dir=tmp_path, quiet=True):
        pass
    with pytest.raises(ValueError, match="before any step"), watch(output_dir=tmp_path):
        raise ValueError("before any step")
    trainer = make_trainer(tmp_path / "attached", disable_tqdm=True, logging_strategy="no")
    attach(trainer)
    with watch(output_dir=tmp_path):
        trainer.train()
    monkeypatch.setenv("FORGATHER_MEM", "0")
    with watch(output_dir=tmp_path):
        pass
    assert "forgather-mem:" not in capsys.readouterr().err


def made_of(callback: Any) -> list[object]:
    """What a callback does and when, with all plain values in its parts."""
    works = [(rule.when, rule.name, rule.budget_frac, *map(settings, rule.do)) for rule in callback.rules]
    return [type(callback), *works, *map(settings, callback.sinks)]


def settings(part: object) -> object:
    plain = {name: value for name, value in vars(part).items() if isinstance(value, str | int | float | bool | None)}
    return type(part), plain, getattr(part, "reading", None)


def test_what_is_made_without_reading_our_template_is_what_it_says() -> None:
    read = ConfigEnvironment().load(WATCH).construct("trainer_callbacks")
    assert list(map(made_of, load_callbacks(WATCH))) == list(map(made_of, read))


OTHER = "trainer_callbacks: !list [ !singleton:forgather_mem.callbacks:LeakDetector ]\n"


def test_a_template_of_that_name_in_the_current_folder_goes_before_ours(tmp_path: Path, own_folder: None) -> None:
    assert len(load_callbacks(str(WATCH))) == 3
    (tmp_path / "callbacks").mkdir()
    (tmp_path / WATCH).write_text(OTHER)
    assert [type(one).__name__ for one in load_callbacks(str(WATCH))] == ["LeakDetector"]


@pytest.mark.parametrize("file", ["watch.yaml", "base_callbacks.yaml"])
def test_the_default_is_ours_whatever_the_current_folder_has(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / file).write_text(OTHER)
    ours = ["MemoryCallback", "LeakDetector", "OOMReporter"]
    for options in ({}, {"logging_dir": "logs"}):
        trainer = make_trainer(tmp_path)
        attached = attach(trainer, **options)
        assert [type(one).__name__ for one in attached.callbacks] == ours
        with watch(quiet=True, **options) as watched:
            assert [type(one).__name__ for one in watched.callbacks] == ours
    monkeypatch.setenv(run_session.SETTINGS, "logging_dir=logs")
    assert [type(one).__name__ for one in callbacks_of_run()[1:]] == ours
