"""All of the zoo of leaks (recall, alarms, holders), and all scripts that run out of memory (phase, size, ending)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.soak
@pytest.mark.parametrize("benchmark", ["leaks", "ooms"])
def test_the_goals_are_reached(benchmark: str) -> None:
    command = [sys.executable, f"benchmarks/{benchmark}.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
