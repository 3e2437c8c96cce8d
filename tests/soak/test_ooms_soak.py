"""All scripts that run out of memory: phase, size, ending, and whether the first suggestion helps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.soak
def test_the_goals_are_reached() -> None:
    command = [sys.executable, "benchmarks/ooms.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
