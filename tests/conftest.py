"""What all tests share: tests that need a process of their own get one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

# Programs that tests start, not tests
collect_ignore = ["run_child.py", "launch/train.py"]

_IN_CHILD = "FORGATHER_MEM_TEST_CHILD"


def pytest_configure(config: pytest.Config) -> None:
    """What a shell ignores for its background jobs would be ignored by the children of tests, too."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test marked `fresh` looks at this process's heap or peak, which earlier tests have shaped: it runs alone."""
    if pyfuncitem.get_closest_marker("fresh") is None or os.environ.get(_IN_CHILD):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:xdist", pyfuncitem.nodeid]
    environment = {**os.environ, _IN_CHILD: "1"}
    done = subprocess.run(
        command, cwd=pyfuncitem.config.rootpath, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True
