"""What all tests share: tests that need a process of their own get one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.fresh import IN_CHILD, FreshProcesses

# Programs that tests start, not tests
collect_ignore = ["run_child.py", "launch/train.py", "launch/loop.py"]

_PROCESSES = FreshProcesses()


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
    if pyfuncitem.get_closest_marker("fresh") is None or os.environ.get(IN_CHILD):
        return None
    code, printed = _PROCESSES.run(pyfuncitem.nodeid, pyfuncitem.config.rootpath)
    if code:
        pytest.fail(f"in a process of its own:\n{printed}", pytrace=False)
    return True


def pytest_unconfigure() -> None:
    _PROCESSES.close()
