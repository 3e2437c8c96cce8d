"""Scripts that begin a process group of their own, as those do which end their helpers with `killpg`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import test_signals
from tests.launch.commands import RUN, python

BEGINS = {
    "a group": "import os\nif os.getpgrp() != os.getpid(): os.setpgrp()\n",
    "a session": "import os\nif os.getsid(0) != os.getpid(): os.setsid()\n",
}
Script = test_signals.Counting


def to_the_group(script: Script) -> None:
    os.killpg(script.process.pid, signal.SIGTERM)


def to_the_process(script: Script) -> None:
    os.kill(script.process.pid, signal.SIGTERM)


@pytest.mark.parametrize("send", [to_the_group, to_the_process])
@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("begins", BEGINS)
def test_a_signal_reaches_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str, words: list[str], send: Callable[[Script], None]
) -> None:
    monkeypatch.setattr(test_signals, "COUNTS", BEGINS[begins] + test_signals.COUNTS)
    script = Script(tmp_path, words)
    send(script)
    assert script.counts() == {int(signal.SIGTERM): 1}
