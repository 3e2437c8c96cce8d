"""The whole zoo of leaks: recall, false alarms, holders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.soak
def test_the_zoo_is_judged_as_well_as_is_promised() -> None:
    command = [sys.executable, "benchmarks/leaks.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
