"""Scripts that begin a process group of their own, as those do which end their helpers with `killpg`."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.commands import RUN, python
from tests.launch.processes import COUNTS, Counting
from tests.launch.test_waiting import to_the_group, to_the_process

BEGINS = {
    "a group": "import os\nif os.getpgrp() != os.getpid(): os.setpgrp()\n",
    "a session": "import os\nif os.getsid(0) != os.getpid(): os.setsid()\n",
}


@pytest.mark.parametrize("send", [to_the_group, to_the_process])
@pytest.mark.parametrize("words", [python(), RUN], ids=["alone", "watched"])
@pytest.mark.parametrize("begins", BEGINS)
def test_a_signal_reaches_it_once(
    tmp_path: Path, begins: str, words: list[str], send: Callable[[Counting, int], None]
) -> None:
    script = Counting(tmp_path, words, BEGINS[begins] + COUNTS)
    send(script, signal.SIGTERM)
    assert script.counts() == {int(signal.SIGTERM): 1}
