"""A file that does not answer is named, by a thread that is there only while it can be of use."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forgather_mem.formats import stalls
from forgather_mem.formats.stalls import STALLS, may_stall
from forgather_mem.sinks import JsonlSink
from forgather_mem.telemetry.records import Sample
from tests.sinks.plain_run import PlainRun

pytestmark = pytest.mark.fresh  # other tests leave files open


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "AFTER_S", 0.2)
    monkeypatch.setattr(stalls, "_LOOK_EVERY_S", 0.02)


def test_a_write_that_does_not_return_names_its_file_and_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "memory.rank0.jsonl"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    fcntl.fcntl(reader, 1031, 4096)  # F_SETPIPE_SZ
    sink = JsonlSink(pipe)
    sink.begin(PlainRun())

    def train() -> None:
        for step in range(200):
            sink.write(Sample("step_end", step, None, 1.0, {"host/rss_bytes": 1.0}))

    training = threading.Thread(target=train)
    with caplog.at_level(logging.WARNING):
        training.start()
        until(lambda: caplog.records)
        time.sleep(0.1)
        assert training.is_alive()
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"writing {pipe} has taken" in told
    assert "FORGATHER_MEM_DIR" in told
    fcntl.fcntl(reader, 1031, 1 << 20)
    os.set_blocking(reader, False)
    os.read(reader, 4096)  # wakes the writer, which now has room for all
    training.join()
    sink.end(PlainRun())
    os.close(reader)
    until(lambda: STALLS._thread is None)


def test_files_that_answer_are_not_spoken_of_and_the_thread_ends_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = JsonlSink(tmp_path / "a.jsonl")
    sink.begin(PlainRun())
    with caplog.at_level(logging.WARNING):
        for step in range(30):
            sink.write(Sample("step_end", step, None, 1.0, {}))
            time.sleep(0.01)
        thread = STALLS._thread
        assert thread is not None
        assert thread.daemon
        sink.end(PlainRun())
        until(lambda: not thread.is_alive())
    assert not caplog.records


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_such_thread_until_it_opens_a_file(tmp_path: Path) -> None:
    with may_stall("a"):
        child = os.fork()
        if not child:
            threads = threading.active_count()
            with may_stall("b"):
                os._exit(0 if (threads, threading.active_count()) == (1, 2) else 1)
        assert os.waitpid(child, 0)[1] == 0
