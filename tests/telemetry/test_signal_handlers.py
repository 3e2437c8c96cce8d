"""What a signal's handler raises while our code runs is the user's."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem import Every, Rule, TrainingLoop
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.probes import CleanupProbe, HostProbe, PythonProbe
from forgather_mem.sinks import BlackBoxSink, JsonlSink, TensorBoardSink

_SIGNALS = 60


class Preempted(Exception):
    """What a user's handler raises."""


def raising(kind: type[BaseException]) -> Callable[..., None]:
    def handler(*given: object) -> None:
        raise kind("from a handler")

    return handler


@pytest.mark.parametrize("kind", [Preempted, TimeoutError, KeyboardInterrupt])
def test_what_a_signals_handler_raises_while_our_code_runs_reaches_the_user(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    """The steps do nothing, so that nearly all of them is our code; each signal comes at another place of it."""
    rules = [Rule(when=Every(steps=1), do=[HostProbe(), PythonProbe(), CleanupProbe()])]
    sinks = [JsonlSink(path=tmp_path / "log.jsonl"), TensorBoardSink(logging_dir=str(tmp_path)), BlackBoxSink()]
    callback = MemoryCallback(rules=rules, sinks=sinks)
    loop = TrainingLoop(args=SimpleNamespace(output_dir=str(tmp_path)), callbacks=[callback])
    chance, arrived, in_ours = random.Random(0), 0, 0
    before = signal.signal(signal.SIGALRM, raising(kind))
    try:
        with loop.train():
            for _ in range(3):  # files are begun
                with loop.step():
                    pass
            for _ in range(_SIGNALS):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 2e-3))
                deadline_s = time.monotonic() + 5.0
                try:
                    while time.monotonic() < deadline_s:
                        with loop.step():
                            pass
                except kind as error:
                    arrived += 1
                    in_ours += any(
                        "forgather_mem/" in part.filename for part in traceback.extract_tb(error.__traceback__)
                    )
    finally:
        signal.signal(signal.SIGALRM, before)
    assert arrived == _SIGNALS
    assert in_ours > _SIGNALS / 4
    assert callback.summary is not None
    assert callback.summary.switched_off == []
