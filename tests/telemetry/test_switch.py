"""`FORGATHER_MEM=0`, and a run that cannot begin: the script goes on, and the report says so."""

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forgather_mem import attach, cleanup, load_callbacks, release_memory, retry_on_oom
from forgather_mem.loops.training_loop import TrainingLoop
from forgather_mem.notebook import run_magic
from forgather_mem.testing.small_run import in_child
from forgather_mem.trackers import BatchMemoryProfiler, EpochMemoryMonitor, MemoryMonitor, MemoryTracker, track_memory
from tests.training import fingerprint, make_trainer, tiny_model


def insides(trainer: Any) -> list[dict[str, Any]]:
    owners = (trainer, trainer.callback_handler, trainer.accelerator, trainer.state, trainer.control)
    return [dict(vars(owner)) for owner in owners] + [{"callbacks": list(trainer.callback_handler.callbacks)}]


def test_the_scripts_of_the_readme_go_on_and_nothing_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alone = make_trainer(tmp_path / "alone")
    alone.train()
    monkeypatch.setenv("FORGATHER_MEM", "Off")
    trainer = make_trainer(tmp_path / "switched off")
    before = insides(trainer)
    watching = attach(trainer)
    assert insides(trainer) == before
    trainer.train()
    assert fingerprint(trainer) == fingerprint(alone)
    report = watching.report()
    assert "Nothing was watched: it is switched off by FORGATHER_MEM=Off" in " ".join(str(report).split())
    assert str(report).startswith("== forgather-mem == training == not watched =")
    assert (report["schema"], report["steps"], report["run"]["end"], report["oom"]) == (1, 0, None, None)
    assert report.keys() == attach(alone).report().keys()
    watching.detach()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "alone" not in path.parts] == []
    assert capfd.readouterr().err == ""


def test_switched_off_between_attach_and_the_training_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    watching = attach(trainer)
    trainer.train()
    assert watching.report()["steps"] == 2
    monkeypatch.setenv("FORGATHER_MEM", "no")
    trainer.train()
    assert "switched off by FORGATHER_MEM=no" in " ".join(str(watching.report()).split())


def test_a_template_whose_callbacks_are_all_disabled_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text(
        "trainer_callbacks: !list\n    - !singleton:forgather_mem.callbacks:PeakMemory { enabled: false }\n"
    )
    trainer = make_trainer(tmp_path / "out", max_steps=1)
    watching = attach(trainer, "none.yaml", searchpath=tmp_path)
    trainer.train()
    assert "no callback of the template is both ours and enabled" in " ".join(str(watching.report()).split())


def test_everything_else_goes_on_when_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGATHER_MEM", "FALSE")
    monkeypatch.chdir(tmp_path)
    templates = ("watch", "memory", "memory_debug", "memory_production", "gc_governor", "loggers")
    callbacks = [callback for name in templates for callback in load_callbacks(f"callbacks/{name}.yaml")]
    make_trainer(tmp_path / "out", callbacks, eval_strategy="steps", eval_steps=3).train()
    loop = TrainingLoop(tiny_model(), callbacks=load_callbacks("callbacks/watch.yaml"))
    with loop.train(), loop.epoch(), loop.step():
        loop.log({"loss": 1.0})
    with track_memory("block") as block:
        pass
    assert block.cpu.consumed_bytes == 0
    for tracker in (MemoryTracker(), BatchMemoryProfiler()):
        assert tracker is not None
    monitor = EpochMemoryMonitor()
    monitor.on_epoch_start()
    monitor.on_batch_end(0, 1.0)
    monitor.on_epoch_end()
    MemoryMonitor.print_memory_usage()
    with cleanup("block"):
        pass
    release_memory(object())
    assert retry_on_oom(starting_batch_size=4)(lambda batch_size: batch_size)() == 4
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert "batches)" not in capfd.readouterr().out


def test_run_runs_alone_when_switched_off(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from forgather_mem.telemetry.run_session import is_off\nprint(is_off())\n")
    words = [sys.executable, "-m", "forgather_mem", "run", str(script)]
    environment = {**os.environ, "FORGATHER_MEM": "No"}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def without_proc(what: Callable[[], None]) -> str | None:
    """What becomes of this in a child that sees an empty /proc, as in some sandboxes: nothing, or how it fails."""
    if os.geteuid():
        pytest.skip("hiding /proc needs root")

    def child() -> str | None:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None)
        failed = failed or libc.mount(b"tmpfs", b"/proc", b"tmpfs", 0, None)
        return "no mount" if failed else what()

    told = in_child(child)
    if told == "no mount":
        pytest.skip("this container may not mount")
    return told


def test_without_a_proc_the_training_goes_on_and_the_report_says_so(tmp_path: Path) -> None:
    def script() -> None:
        alone = make_trainer(tmp_path / "alone")
        alone.train()
        trainer = make_trainer(tmp_path / "watched")
        before = gc.isenabled(), list(gc.callbacks)
        watching = attach(trainer)
        trainer.train()
        (tmp_path / "report").write_text(str(watching.report()))
        assert fingerprint(trainer) == fingerprint(alone)
        assert (gc.isenabled(), list(gc.callbacks)) == before
        assert trainer.train().global_step == 6

    assert without_proc(script) is None
    text = " ".join((tmp_path / "report").read_text().split())
    assert "== not watched ==" in text
    assert "Nothing was watched: our run could not begin: " in text


def test_the_notebook_goes_on_when_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGATHER_MEM", "0")
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    assert "forgather_mem" in run_magic(shell, "")
