"""Scripts that begin a process group of their own, as those do which end their helpers with `killpg`."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.commands import RUN, python
from tests.launch.processes import COUNTS, Counting

BEGINS = {
    "a group": "import os\nif os.getpgrp() != os.getpid(): os.setpgrp()\n",
    "a session": "import os\nif os.getsid(0) != os.getpid(): os.setsid()\n",
}


def to_the_group(script: Counting) -> None:
    os.killpg(script.process.pid, signal.SIGTERM)


def to_the_process(script: Counting) -> None:
    os.kill(script.process.pid, signal.SIGTERM)


@pytest.mark.parametrize("send", [to_the_group, to_the_process])
@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("begins", BEGINS)
def test_a_signal_reaches_it_once(
    tmp_path: Path, begins: str, words: list[str], send: Callable[[Counting], None]
) -> None:
    script = Counting(tmp_path, words, BEGINS[begins] + COUNTS)
    send(script)
    assert script.counts() == {int(signal.SIGTERM): 1}
