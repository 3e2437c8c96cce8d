"""A training that has little left below a limit of its process is not killed by being watched."""

import subprocess
import sys

import pytest

from benchmarks import own_memory

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("kind", list(own_memory.LIMITED))
def test_a_training_goes_on_with_8_mib_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [own_memory.one("alone") for _ in range(3)]
    taken_mib = max(memory["itself"][own_memory.LIMITED[kind]] for memory in alone if memory is not None)
    monkeypatch.setenv(own_memory.LIMIT, f"{kind} {taken_mib + 8}")
    for way in ("alone", "attach", "callbacks/memory.yaml"):
        assert own_memory.one(way) is not None  # it raises SystemExit for a training that has failed


_ATTACHES = """
import resource, sys
import torch, transformers
from transformers import TrainerCallback
from forgather_mem.load import attach
from forgather_mem.system.procfs import kib_fields

class TakesCallbacks:
    added = []
    def add_callback(self, callback):
        self.added.append(callback)

kept = kib_fields(open("/proc/self/status", "rb").read())[b"VmData"]
resource.setrlimit(resource.RLIMIT_DATA, (kept + 2**19, resource.RLIM_INFINITY))
attach(TakesCallbacks())
print(len(TakesCallbacks.added))
"""


def test_with_no_memory_left_nothing_is_attached_and_the_training_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", _ATTACHES], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "attach: there is no memory left to watch this training" in done.stderr
