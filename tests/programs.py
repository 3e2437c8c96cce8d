"""Short programs, each in a Python of its own; and collections only where a test asks for one."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def printed_by(code: str, *arguments: object, folder: Path = ROOT, **environment: str) -> str:
    """What this program prints, which ends well; where it runs in this checkout, it can import tests."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Only an explicit collection collects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
